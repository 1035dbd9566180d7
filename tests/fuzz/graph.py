"""Random graphs under construction, and the cases that they become."""

import functools
import warnings

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

LARGEST = 1e3  # graphs with values beyond are thrown away
OPSETS = (13, 16, 18, 20, 21, 22, 23, 24, 25, 26, 27)
DOMAINS = {"ai.onnx.ml": 5, "ai.onnx.preview.training": 1, "ai.onnx.preview": 1}


class Unfit(Exception):
    """The maker has no use for what there is: another operator is tried."""


def make_model(nodes, inputs, constants, outputs, opset, values=None):
    info = lambda n, v: helper.make_tensor_value_info(
        n, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape)
    outs = [info(n, values[n]) if values else helper.make_empty_tensor_value_info(n)
            for n in outputs]
    graph = helper.make_graph(nodes, "fuzz", [info(n, v) for n, v in inputs.items()], outs,
                              [numpy_helper.from_array(v, n) for n, v in constants.items()])
    domains = sorted({node.domain for node in nodes if node.domain})
    imports = [helper.make_opsetid("", opset)] + [helper.make_opsetid(d, DOMAINS[d])
                                                  for d in domains]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def evaluate(nodes, feeds, outputs, opset):
    for node in nodes:  # an error where the opset does not have the operator yet
        onnx.defs.get_schema(node.op_type, DOMAINS.get(node.domain, opset), node.domain)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        model = make_model(nodes, feeds, {}, outputs, opset)
        return ReferenceEvaluator(model).run(None, feeds)


def opsets_with(operator):
    """Those of OPSETS that have it."""
    domain, _, op = operator.rpartition("::")
    return [o for o in OPSETS if domain or onnx.defs.has(op, domain) and _since(op) <= o]


@functools.cache
def _since(op):
    return min(s.since_version for s in onnx.defs.get_all_schemas_with_history()
               if s.name == op and not s.domain)


class Graph:
    """A graph under construction, with the reference's values. Values that are `exact` have no
    rounding in them, so operators that jump may read them."""

    def __init__(self, random, opset=None):
        self.random, self.nodes, self.constants = random, [], {}
        self.values, self.exact, self.inputs = {}, set(), []
        self.opset = opset or int(random.choice(OPSETS))
        for _ in range(random.integers(1, 4)):
            self.fresh()

    # Numbers

    def choose(self, *options):
        return options[self.random.integers(len(options))]

    def chance(self, share):
        return self.random.random() < share

    def int(self, low, high):
        """In [low, high]."""
        return int(self.random.integers(low, high + 1))

    def shape_of(self, rank=None, most=5):
        rank = self.int(1, 4) if rank is None else rank
        return [self.int(1, most) for _ in range(rank)]

    def numbers(self, shape, dtype=np.float32, low=-2.0, high=2.0):
        """Multiples of 1/4, integers, booleans."""
        dtype = np.dtype(dtype)
        if dtype.kind == "b":
            return self.random.random(shape) < 0.5
        if dtype.kind in "iu":
            low = max(low, 0) if dtype.kind == "u" else low
            return self.random.integers(int(low), int(high) + 1, shape).astype(dtype)
        return (self.random.integers(int(4 * low), int(4 * high) + 1, shape) / 4).astype(dtype)

    # Values

    def input(self, value):
        name = f"x{len(self.inputs)}"
        self.values[name] = np.asarray(value)
        self.exact.add(name)
        self.inputs.append(name)
        return name

    def fresh(self, shape=None, dtype=np.float32, low=-2.0, high=2.0):
        """A new input of the graph."""
        return self.input(self.numbers(self.shape_of() if shape is None else shape, dtype, low,
                                       high))

    def constant(self, value, dtype=np.int64):
        name = f"c{len(self.constants)}"
        self.constants[name] = np.asarray(value, dtype)
        return name

    def weights(self, *shape):
        return self.constant(self.numbers(shape, low=-1, high=1), np.float32)

    def either(self, value, dtype=np.float32):
        """An input or a constant."""
        value = np.asarray(value, dtype)
        return self.input(value) if self.chance(0.5) else self.constant(value, dtype)

    def pick(self, kind="f", rank=None, exact=False, least=0):
        """The name of a value of a kind (f, i, b), perhaps of a rank, or None. Floats are f32."""
        fits = [n for n, v in self.values.items()
                if v.dtype.kind == kind and (kind != "f" or v.dtype == np.float32)
                and (rank is None or v.ndim == rank) and v.ndim >= least
                and v.size > 0 and (not exact or n in self.exact)
                and (kind != "f" or np.isfinite(v).all())]
        return fits[self.random.integers(len(fits))] if fits else None

    def some(self, rank=None, least=0, exact=False, most=5):
        """A float value that is there, or a fresh one."""
        name = self.pick("f", rank, exact, least) if self.chance(0.7) else None
        return name or self.fresh(self.shape_of(
            self.int(max(1, least), max(4, least)) if rank is None else rank, most))

    def bounded(self, low, high, shape=None):
        """A fresh value in a range; or, where that is what is there, another."""
        fits = [n for n, v in self.values.items() if v.dtype == np.float32 and v.size > 0
                and (v >= low).all() and (v <= high).all() and n not in self.inputs]
        return self.choose(*fits) if fits and shape is None and self.chance(0.5) else \
            self.fresh(shape, low=low, high=high)

    def value(self, name):
        return self.values[name] if name in self.values else self.constants[name]

    def shape(self, name):
        return self.value(name).shape

    # Nodes

    def add(self, op, inputs, outputs=1, exact=False, **attributes):
        domain, _, op = op.rpartition("::")
        names = [f"v{len(self.values)}_{i}" for i in range(outputs)]
        node = helper.make_node(op, inputs, names, domain=domain, **attributes)
        return self.block([node], names, exact, [n for n in inputs if n])

    def block(self, nodes, outputs, exact=False, reads=None):
        """Adds nodes that are evaluated together; those of `outputs` are tensors that others may
        read. Gives their names, or nothing where values are of no use."""
        if reads is None:
            made = {n for node in nodes for n in node.output}
            reads = [n for node in nodes for n in node.input if n and n not in made]
        feeds = {n: self.value(n) for n in reads}
        results = [np.asarray(v) for v in evaluate(nodes, feeds, outputs, self.opset)]
        wide = any(feed.dtype == np.float64 for feed in feeds.values())
        for value in results:
            if value.dtype == np.float64 and not wide and not any(
                    n.op_type in ("Cast", "Range", "Constant", "EyeLike") for n in nodes):
                raise Unfit("the reference has lost the type")
            if value.dtype.kind == "f" and not (np.abs(value) <= LARGEST).all():
                raise Unfit("large")
            if value.size > 20000 or value.dtype.kind not in "fiubOU":
                raise Unfit("size or type")
        self.nodes += nodes
        for name, value in zip(outputs, results):
            self.values[name] = value.astype(object) if value.dtype.kind == "U" else value
            if exact and all(n in self.exact or n in self.constants for n in reads):
                self.exact.add(name)
        return outputs


class Case:
    """A graph with inputs and the outputs wanted."""

    def __init__(self, nodes, inputs, constants, outputs, values, opset):
        self.nodes, self.constants, self.outputs, self.values = nodes, constants, outputs, values
        self.opset = opset
        read = {n for node in nodes for n in node.input}
        self.inputs = [n for n in inputs if n in read]
        self.constants = {n: v for n, v in constants.items() if n in read}

    def write(self, folder):
        data = folder / "test_data_set_0"
        data.mkdir(parents=True)
        model = make_model(self.nodes, {n: self.values[n] for n in self.inputs}, self.constants,
                           self.outputs, self.opset, self.values)
        onnx.save(model, folder / "model.onnx")
        for kind, names in (("input", self.inputs), ("output", self.outputs)):
            for i, name in enumerate(names):
                proto = numpy_helper.from_array(self.values[name], name)
                (data / f"{kind}_{i}.pb").write_bytes(proto.SerializeToString())

    def keep(self, outputs, as_inputs):
        """Only what these outputs need, where some values are given instead of computed."""
        if not all(name in self.values for name in (*outputs, *as_inputs)):
            return None  # sequences within a block
        needed, nodes = set(outputs) - as_inputs, []
        for node in reversed(self.nodes):
            if needed & set(node.output):
                nodes.insert(0, node)
                needed |= {n for n in node.input if n and n not in as_inputs}
        made = {n for node in nodes for n in node.output}
        inputs = [n for n in self.values if n not in made]
        return Case(nodes, inputs, self.constants, outputs, self.values,
                    self.opset) if nodes else None

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


def finished(g):
    """The case of a graph's unread outputs, or None."""
    read = {n for node in g.nodes for n in node.input}
    outputs = [n for node in g.nodes for n in node.output
               if n and n not in read and n in g.values and g.values[n].size > 0]
    if not outputs:
        return None
    case = Case(g.nodes, g.inputs, g.constants, outputs, g.values, g.opset)
    return case.keep(outputs, set(case.inputs))
