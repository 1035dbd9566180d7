"""Random small valid graphs, compared with onnx's reference evaluator; failures are shrunk.

    build/venv/bin/python tests/fuzz/graphs.py [--seconds 60] [--seed N] [--keep tests/repro]

With --templates half of the graphs are models of onnx's own node tests with other values, so that
nearly every operator is met; what those find has to be looked at, for the reference may be the one
that is wrong. At the end it says which operators were not met.

Each batch of graphs becomes a folder of backend tests, which heddle-conformance runs, one process
per case. A graph that differs, crashes or hangs is reduced (nodes become inputs, outputs are taken
from the middle) for as long as it still fails, and written to the folder `--keep`.
Inputs are small multiples of 1/4 and operators that jump (Floor, comparisons, ArgMax) only read
values that are computed exactly, so a difference is a mistake, not rounding.
"""

import argparse
import functools
import json
import pathlib
import subprocess
import sys
import tempfile
import time
import warnings

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

ROOT = pathlib.Path(__file__).resolve().parents[2]
OPSET = 20
LARGEST = 1e3  # graphs with values beyond are thrown away


class Graph:
    """A graph under construction, with the reference's values."""

    def __init__(self, random):
        self.random, self.nodes, self.constants = random, [], {}
        self.values, self.exact, self.inputs = {}, set(), []
        for _ in range(random.integers(1, 4)):
            shape = [int(n) for n in random.integers(1, 6, random.integers(1, 5))]
            name = f"x{len(self.inputs)}"
            self.values[name] = (random.integers(-8, 9, shape) / 4).astype(np.float32)
            self.exact.add(name)
            self.inputs.append(name)

    def constant(self, value, dtype=np.int64):
        name = f"c{len(self.constants)}"
        self.constants[name] = np.asarray(value, dtype)
        return name

    def pick(self, kind="f", rank=None, exact=False, least=0):
        """The name of a value of a kind (f, i, b), perhaps of a rank, or None."""
        fits = [n for n, v in self.values.items()
                if v.dtype.kind == kind and (rank is None or v.ndim == rank) and v.ndim >= least
                and v.size > 0 and (not exact or n in self.exact)]
        return fits[self.random.integers(len(fits))] if fits else None

    def shape(self, name):
        return self.values[name].shape

    def weights(self, *shape):
        return self.constant(self.random.integers(-4, 5, shape) / 4, np.float32)

    def choose(self, *options):
        return options[self.random.integers(len(options))]

    def add(self, op, inputs, outputs=1, exact=False, **attributes):
        names = [f"v{len(self.values)}_{i}" for i in range(outputs)]
        node = helper.make_node(op, inputs, names, **attributes)
        feeds = {n: self.values.get(n, self.constants.get(n)) for n in inputs if n}
        types = {n: v for n, v in feeds.items()}
        model = make_model([node], types, {}, names)
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            results = ReferenceEvaluator(model).run(None, feeds)
        for name, value in zip(names, results):
            value = np.asarray(value)
            if value.dtype.kind == "f" and not (np.abs(value) <= LARGEST).all():
                return
            if value.size > 20000 or value.dtype.kind not in "fib":
                return
        self.nodes.append(node)
        for name, value in zip(names, results):
            self.values[name] = np.asarray(value)
            if exact and all(n in self.exact or n in self.constants for n in inputs if n):
                self.exact.add(name)


def make_model(nodes, inputs, constants, outputs, values=None):
    info = lambda n, v: helper.make_tensor_value_info(
        n, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape)
    outs = [info(n, values[n]) if values else helper.make_empty_tensor_value_info(n)
            for n in outputs]
    graph = helper.make_graph(nodes, "fuzz", [info(n, v) for n, v in inputs.items()], outs,
                              [numpy_helper.from_array(v, n) for n, v in constants.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=9)


def axis_of(g, x):
    rank = len(g.shape(x))
    return int(g.random.integers(-rank, rank))


def some_axes(g, x):
    rank = len(g.shape(x))
    count = int(g.random.integers(1, rank + 1))
    return [int(a) for a in g.random.permutation(rank)[:count]]


def unary(g):
    op = g.choose("Abs", "Neg", "Relu", "Sigmoid", "Tanh", "Erf", "Softplus", "Softsign", "Sin",
                  "Cos", "Atan", "Elu", "Selu", "LeakyRelu", "HardSigmoid", "HardSwish", "Gelu",
                  "Mish", "Celu", "Identity", "Exp")
    if x := g.pick():
        g.add(op, [x], exact=op in ("Abs", "Neg", "Relu", "Identity"))


def jump(g):
    if x := g.pick(exact=True):
        g.add(g.choose("Floor", "Ceil", "Round", "Sign"), [x], exact=True)


def partner(g, x):
    """A value that broadcasts with x: itself, another of its shape, or a constant."""
    shape = list(g.shape(x))
    same = [n for n, v in g.values.items() if v.shape == tuple(shape) and v.dtype.kind == "f"]
    if g.random.random() < 0.5:
        return g.choose(*same)
    kept = shape[int(g.random.integers(0, len(shape) + 1)):]
    return g.weights(*[n if g.random.random() < 0.7 else 1 for n in kept])


def binary(g):
    if x := g.pick():
        args = [x, partner(g, x)]
        if g.random.random() < 0.3:
            args.reverse()
        g.add(g.choose("Add", "Sub", "Mul", "Max", "Min"), args, exact=True)


def compare(g):
    x = g.pick(exact=True)
    if x:
        y = partner(g, x)
        if y in g.exact or y in g.constants:
            g.add(g.choose("Less", "Greater", "Equal", "LessOrEqual", "GreaterOrEqual"), [x, y],
                  exact=True)


def logic(g):
    if x := g.pick("b"):
        g.add("Not", [x], exact=True) if g.random.random() < 0.3 else \
            g.add(g.choose("And", "Or", "Xor"), [x, x], exact=True)


def where(g):
    if (c := g.pick("b")) and (x := g.pick()):
        try:
            np.broadcast_shapes(g.shape(c), g.shape(x))
        except ValueError:
            return
        g.add("Where", [c, x, g.weights(1)], exact=True)


def cast(g):
    if x := g.pick(g.choose("f", "i", "b"), exact=True):
        g.add("Cast", [x], exact=True, to=g.choose(1, 6, 7, 9))


def shuffle(g):
    x = g.pick(g.choose("f", "f", "i", "b"))
    if not x:
        return
    shape, rank, r = g.shape(x), len(g.shape(x)), g.random
    size = int(np.prod(shape))
    kind = g.choose("Transpose", "Reshape", "Flatten", "Unsqueeze", "Concat", "Split", "Slice",
                    "Tile", "Expand", "Gather")
    if kind == "Transpose":
        g.add(kind, [x], exact=True, perm=[int(p) for p in r.permutation(rank)])
    elif kind == "Reshape":
        first = int(g.choose(*[d for d in range(1, size + 1) if size % d == 0]))
        g.add(kind, [x, g.constant([first, -1])], exact=True)
    elif kind == "Flatten":
        g.add(kind, [x], exact=True, axis=int(r.integers(0, rank + 1)))
    elif kind == "Unsqueeze" and rank < 5:
        g.add(kind, [x, g.constant([int(r.integers(0, rank + 1))])], exact=True)
    elif kind == "Concat":
        g.add(kind, [x] * int(r.integers(1, 4)), exact=True, axis=axis_of(g, x))
    elif kind == "Split":
        axis = axis_of(g, x)
        if shape[axis] > 1:
            first = int(r.integers(1, shape[axis]))
            g.add(kind, [x, g.constant([first, shape[axis] - first])], 2, exact=True, axis=axis)
    elif kind == "Slice":
        axis = axis_of(g, x)
        step = int(g.choose(1, 1, 2, -1, -2))
        start, end = int(r.integers(-6, 6)), int(r.integers(-6, 6))
        g.add(kind, [x, g.constant([start]), g.constant([end]), g.constant([axis]),
                     g.constant([step])], exact=True)
    elif kind == "Tile":
        g.add(kind, [x, g.constant(r.integers(1, 3, rank))], exact=True)
    elif kind == "Expand":
        g.add(kind, [x, g.constant([int(r.integers(1, 3))] + [1] * rank)], exact=True)
    elif kind == "Gather":
        axis = axis_of(g, x)
        n = shape[axis]
        g.add(kind, [x, g.constant(r.integers(-n, n, g.choose((2,), (2, 2), ())))], exact=True,
              axis=axis)


def pad(g):
    if x := g.pick():
        rank, mode = len(g.shape(x)), g.choose("constant", "edge", "reflect")
        room = [n - 1 if mode == "reflect" else 2 for n in g.shape(x)]
        pads = [int(g.random.integers(0, min(2, room[d % rank]) + 1)) for d in range(2 * rank)]
        g.add("Pad", [x, g.constant(pads)], exact=True, mode=mode)


def scatter(g):
    if x := g.pick():
        axis, shape = axis_of(g, x), g.shape(x)
        index = g.random.permutation(shape[axis])[: max(1, shape[axis] // 2)]
        picked = list(shape)
        picked[axis] = len(index)
        where = np.broadcast_to(index.reshape([-1 if d == axis % len(shape) else 1
                                               for d in range(len(shape))]), picked)
        if g.random.random() < 0.5:
            g.add("GatherElements", [x, g.constant(where)], exact=True, axis=axis)
        else:
            g.add("ScatterElements", [x, g.constant(where), g.weights(*picked)], exact=True,
                  axis=axis, reduction=g.choose("none", "add", "max"))


def reduce(g):
    if x := g.pick():
        op = g.choose("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceL1", "ReduceL2",
                      "ReduceLogSumExp", "ReduceSumSquare")
        g.add(op, [x, g.constant(some_axes(g, x))], exact=op in ("ReduceMax", "ReduceMin"),
              keepdims=int(g.choose(0, 1)))


def order(g):
    if x := g.pick(exact=True):
        axis = axis_of(g, x)
        if g.random.random() < 0.5:
            g.add(g.choose("ArgMax", "ArgMin"), [x], exact=True, axis=axis,
                  keepdims=int(g.choose(0, 1)))
        else:
            k = int(g.random.integers(1, g.shape(x)[axis] + 1))
            g.add("TopK", [x, g.constant([k])], 2, exact=True, axis=axis,
                  largest=int(g.choose(0, 1)))


def along(g):
    if x := g.pick():
        op = g.choose("Softmax", "LogSoftmax", "CumSum", "LayerNormalization", "Trilu")
        axis = axis_of(g, x)
        if op == "CumSum":
            g.add(op, [x, g.constant(axis)], exclusive=int(g.choose(0, 1)),
                  reverse=int(g.choose(0, 1)))
        elif op == "LayerNormalization":
            g.add(op, [x, g.weights(*g.shape(x)[axis:])], axis=axis)
        elif op == "Trilu":
            if len(g.shape(x)) >= 2:
                g.add(op, [x, g.constant(int(g.random.integers(-2, 3)))], exact=True,
                      upper=int(g.choose(0, 1)))
        else:
            g.add(op, [x], axis=axis)


def product(g):
    if x := g.pick(least=1):
        k, n = g.shape(x)[-1], int(g.random.integers(1, 6))
        if len(g.shape(x)) == 2 and g.random.random() < 0.5:
            flip = int(g.choose(0, 1))
            g.add("Gemm", [x, g.weights(*((n, k) if flip else (k, n))), g.weights(n)], transB=flip,
                  alpha=0.5)
        else:
            g.add("MatMul", [x, g.weights(k, n)])


def window(g):
    x = g.pick(rank=int(g.choose(3, 4)))
    if not x:
        return
    n = len(g.shape(x)) - 2
    cin, spatial, r = g.shape(x)[1], g.shape(x)[2:], g.random
    kernel = [int(r.integers(1, min(3, s) + 1)) for s in spatial]
    strides = [int(r.integers(1, 3)) for _ in spatial]
    pads = [int(r.integers(0, k)) for k in kernel] * 2
    kind = g.choose("Conv", "Conv", "ConvTranspose", "MaxPool", "AveragePool")
    if kind == "Conv":
        group = cin if r.random() < 0.3 else 1
        cout = group * int(r.integers(1, 4))
        dilations = [int(g.choose(1, 2)) if (k - 1) * 2 < s else 1 for k, s in zip(kernel, spatial)]
        g.add(kind, [x, g.weights(cout, cin // group, *kernel), g.weights(cout)], group=group,
              kernel_shape=kernel, strides=strides, pads=pads, dilations=dilations)
    elif kind == "ConvTranspose":
        g.add(kind, [x, g.weights(cin, int(r.integers(1, 4)), *kernel)], strides=strides)
    elif kind == "MaxPool":
        g.add(kind, [x], exact=True, kernel_shape=kernel, strides=strides, pads=pads)
    else:
        g.add(kind, [x], kernel_shape=kernel, strides=strides, pads=pads,
              count_include_pad=int(g.choose(0, 1)))


def channels(g):
    x = g.pick(least=3)
    if not x:
        return
    c = g.shape(x)[1]
    kind = g.choose("BatchNormalization", "InstanceNormalization", "GlobalAveragePool",
                    "GlobalMaxPool", "PRelu", "Resize")
    if kind == "BatchNormalization":
        variance = g.constant(g.random.integers(1, 5, c) / 2, np.float32)
        g.add(kind, [x, g.weights(c), g.weights(c), g.weights(c), variance])
    elif kind == "InstanceNormalization":
        g.add(kind, [x, g.weights(c), g.weights(c)], epsilon=0.1)
    elif kind == "PRelu":
        g.add(kind, [x, g.weights(c, *[1] * (len(g.shape(x)) - 2))], exact=True)
    elif kind == "Resize":
        scales = [1.0, 1.0] + [float(g.choose(1, 2, 3)) for _ in g.shape(x)[2:]]
        mode = g.choose("nearest", "linear")
        g.add(kind, [x, "", g.constant(scales, np.float32)], mode=mode, nearest_mode="floor",
              coordinate_transformation_mode="asymmetric")
    else:
        if kind == "GlobalMaxPool" and len(g.shape(x)) != 4:
            return  # onnx's evaluator takes the maximum over the wrong dimensions there
        g.add(kind, [x], exact=kind == "GlobalMaxPool")


STEPS = [unary, unary, jump, binary, binary, compare, logic, where, cast, shuffle, shuffle, pad,
         scatter, reduce, order, along, product, window, window, channels]


class Case:
    """A graph with inputs and the outputs wanted."""

    def __init__(self, nodes, inputs, constants, outputs, values):
        self.nodes, self.constants, self.outputs, self.values = nodes, constants, outputs, values
        read = {n for node in nodes for n in node.input}
        self.inputs = [n for n in inputs if n in read]
        self.constants = {n: v for n, v in constants.items() if n in read}

    def write(self, folder):
        data = folder / "test_data_set_0"
        data.mkdir(parents=True)
        model = make_model(self.nodes, {n: self.values[n] for n in self.inputs}, self.constants,
                           self.outputs, self.values)
        onnx.save(model, folder / "model.onnx")
        for kind, names in (("input", self.inputs), ("output", self.outputs)):
            for i, name in enumerate(names):
                proto = numpy_helper.from_array(self.values[name], name)
                (data / f"{kind}_{i}.pb").write_bytes(proto.SerializeToString())

    def keep(self, outputs, as_inputs):
        """Only what these outputs need, where some values are given instead of computed."""
        needed, nodes = set(outputs) - as_inputs, []
        for node in reversed(self.nodes):
            if needed & set(node.output):
                nodes.insert(0, node)
                needed |= {n for n in node.input if n and n not in as_inputs}
        made = {n for node in nodes for n in node.output}
        inputs = [n for n in self.values if n not in made]
        return Case(nodes, inputs, self.constants, outputs, self.values) if nodes else None

    def smaller(self):
        for node in self.nodes[:-1]:
            for name in node.output:
                yield self.keep([name], set(self.inputs))
        if len(self.outputs) > 1:
            for name in self.outputs:
                yield self.keep([name], set(self.inputs))
        for node in self.nodes:
            if not set(node.output) & set(self.outputs):
                yield self.keep(self.outputs, set(self.inputs) | set(node.output))


# Node tests that are no use here: what they draw or how they accumulate is not defined, or the
# reference does something else than the standard says (the reason is given).
UNFIT = {
    "bernoulli": "draws", "training_dropout": "draws", "image_decoder": "encoded data",
    "onehot": "positions between the given ones mean nothing",
    "range_": "the reference gives the expanded loop's scalars a dimension",
    "FLOAT4E2M1": "small negative numbers: the reference's zero has no sign",
}


@functools.cache
def templates():
    folder = pathlib.Path(onnx.__file__).parent / "backend/test/data/node"
    return [f for f in sorted(folder.iterdir()) if not any(word in f.name for word in UNFIT)]


def other_values(value, random):
    """Numbers between those given, so that they stay where the operator is defined; small integers
    may be positions or shapes, and stay."""
    if value.dtype in (np.float16, np.float32, np.float64) and value.size > 1:
        one, two = (random.permutation(value.ravel()).reshape(value.shape) for _ in range(2))
        share = random.choice([0, 0.25, 0.5], value.shape)
        with np.errstate(all="ignore"):
            return ((1 - share) * one + share * two).astype(value.dtype)
    if value.dtype in (np.int8, np.uint8) and value.size > 4:
        return random.permutation(value.ravel()).reshape(value.shape)
    return value


class Template:
    """The model of a node test on other inputs."""

    def __init__(self, folder, random):
        self.model = onnx.load(folder / "model.onnx")
        self.nodes = list(self.model.graph.node)
        data, self.values = folder / "test_data_set_0", {}
        for i, port in enumerate(self.model.graph.input):
            given = numpy_helper.to_array(onnx.load_tensor(data / f"input_{i}.pb"))
            self.values[port.name] = other_values(given, random)
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            self.wanted = ReferenceEvaluator(self.model).run(None, self.values)
        if not all(isinstance(value, np.ndarray) for value in self.wanted):
            raise ValueError("not a tensor")

    def write(self, folder):
        data = folder / "test_data_set_0"
        data.mkdir(parents=True)
        onnx.save(self.model, folder / "model.onnx")
        for kind, ports, values in (("input", self.model.graph.input, self.values.values()),
                                    ("output", self.model.graph.output, self.wanted)):
            for i, (port, value) in enumerate(zip(ports, values)):
                proto = numpy_helper.from_array(value, port.name)
                (data / f"{kind}_{i}.pb").write_bytes(proto.SerializeToString())

    def smaller(self):
        return []


def random_case(seed, with_templates):
    random = np.random.default_rng(seed)
    if with_templates and seed % 2:
        try:
            return Template(templates()[random.integers(len(templates()))], random)
        except Exception:  # sequences, optional values, what the reference does not have
            return None
    g = Graph(random)
    for _ in range(int(random.integers(1, 9))):
        try:
            g.choose(*STEPS)(g)
        except Exception:  # the reference refuses some uses; so may we
            continue
    read = {n for node in g.nodes for n in node.input}
    outputs = [n for node in g.nodes for n in node.output if n not in read]
    outputs = [n for n in outputs if g.values[n].size > 0]
    case = Case(g.nodes, g.inputs, g.constants, outputs, g.values) if outputs else None
    return case.keep(outputs, set(case.inputs)) if case else None


def failures(cases):
    """The cases that fail (name: reason), and how many were refused."""
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        for name, case in cases.items():
            case.write(folder / "node" / f"test_{name}")
        report = folder / "report.json"
        subprocess.run([ROOT / "build/bin/heddle-conformance", f"fuzz={folder}", "--rtol", "1e-3",
                        "--atol", "1e-3", "--seconds", "20", "--json", report],
                       stdout=subprocess.DEVNULL, check=False)
        rows = json.loads(report.read_text())["cases"]
    failed = {r["name"].removeprefix("test_"): r["reason"] for r in rows if r["status"] == "failed"}
    return failed, [r["reason"] for r in rows if r["status"] == "refused"]


def shrink(case):
    while True:
        options = {f"s{i}": c for i, c in enumerate(c for c in case.smaller() if c)}
        failed, _ = failures(options) if options else ({}, [])
        better = [options[n] for n in failed if len(options[n].nodes) < len(case.nodes)]
        if not better:
            return case
        case = min(better, key=lambda c: len(c.nodes))


def operators(nodes):
    """Their names as `heddle ops` lists them, those in bodies too."""
    for node in nodes:
        yield f"{node.domain}::{node.op_type}" if node.domain else node.op_type
        for attribute in node.attribute:
            yield from operators(attribute.g.node)


def print_reach(met):
    done = subprocess.run([ROOT / "build/bin/heddle", "ops", "--json"], capture_output=True,
                          text=True, check=True)
    ours = [op for op in json.loads(done.stdout)["ops"] if not op.startswith("com.microsoft")]
    never = sorted(set(ours) - met)
    print(f"{len(ours) - len(never)} of {len(ours)} operators (without com.microsoft's) were met; "
          f"not: {' '.join(never)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0, help="of the first graph")
    parser.add_argument("--batch", type=int, default=40)
    parser.add_argument("--templates", action="store_true",
                        help="onnx's node tests with other values")
    parser.add_argument("--keep", type=pathlib.Path, default=ROOT / "tests/repro")
    arguments = parser.parse_args()
    seed, start, found, refusals, ran, met = arguments.seed, time.monotonic(), 0, {}, 0, set()
    while time.monotonic() - start < arguments.seconds:
        cases = {f"fuzz{s}": random_case(s, arguments.templates)
                 for s in range(seed, seed + arguments.batch)}
        seed += arguments.batch
        cases = {name: case for name, case in cases.items() if case}
        ran += len(cases)
        for case in cases.values():
            met.update(operators(case.nodes))
        failed, refused = failures(cases)
        for reason in refused:
            refusals[reason] = refusals.get(reason, 0) + 1
        for name, reason in failed.items():
            found += 1
            small = shrink(cases[name])
            folder = arguments.keep / f"test_{name}"
            if not folder.exists():
                small.write(folder)
            print(f"{name}: {reason}\n  {[n.op_type for n in small.nodes]} in {folder}", flush=True)
    for reason, count in sorted(refusals.items(), key=lambda r: -r[1])[:10]:
        print(f"refused {count}: {reason}")
    print_reach(met)
    print(f"{ran} graphs, {found} failures, {sum(refusals.values())} refused "
          f"(seeds {arguments.seed} to {seed - 1})")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
