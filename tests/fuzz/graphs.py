"""Random small valid graphs, compared with onnx's reference evaluator; failures are shrunk.

    build/venv/bin/python tests/fuzz/graphs.py [--seconds 120] [--seed N] [--keep tests/repro]

table.py lists the operators. With --templates half of the graphs are models of onnx's own node
tests with other values; what those find has to be looked at, for the reference may be the one that
is wrong. With --only OP every graph has that operator. At the end it says which operators were not
met.

Each batch of graphs becomes a folder of backend tests, which heddle-conformance runs, one process
per case. A graph that differs, crashes or hangs is reduced (nodes become inputs, outputs are taken
from the middle) for as long as it still fails, and written to the folder `--keep`.
Inputs are small multiples of 1/4 and operators that jump (Floor, comparisons, ArgMax) only read
values that are computed exactly, so a difference is a mistake, not rounding.
"""

import argparse
import concurrent.futures
import copy
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
import onnxruntime
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

from graph import Case, Graph, finished, opsets_with
from table import MAKERS, reason

ROOT = pathlib.Path(__file__).resolve().parents[2]


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


def random_case(seed, with_templates=False, only=None):
    random = np.random.default_rng(seed)
    if with_templates and seed % 2:
        try:
            return Template(templates()[random.integers(len(templates()))], random)
        except Exception:  # sequences, optional values, what the reference does not have
            return None
    names = list(MAKERS)
    first = only or names[seed % len(names)]  # graphs in a row begin with operators in a row
    g = Graph(random, int(random.choice(opsets_with(first))))
    for step in range(g.int(1, 8)):
        name = g.choose(*names) if step else first
        nodes = len(g.nodes)
        try:
            MAKERS[name](g, name)
        except Exception:  # the reference refuses some uses, and older opsets lack the operator
            del g.nodes[nodes:]
    return finished(g)


def rows_of(cases):
    """What heddle-conformance reports of the cases."""
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        for name, case in cases.items():
            case.write(folder / "node" / f"test_{name}")
        report = folder / "report.json"
        subprocess.run([ROOT / "build/bin/heddle-conformance", f"fuzz={folder}", "--rtol", "1e-3",
                        "--atol", "1e-3", "--seconds", "20", "--json", report],
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
        return json.loads(report.read_text())["cases"]


def failures(cases):
    """The cases that fail (name: reason), and why others were refused."""
    names = list(cases)
    halves = [{n: cases[n] for n in names[i::2]} for i in range(2)]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        rows = [row for part in pool.map(rows_of, [h for h in halves if h]) for row in part]
    failed = {r["name"].removeprefix("test_"): r["reason"] for r in rows if r["status"] == "failed"}
    return failed, [r["reason"] for r in rows if r["status"] == "refused"]


# ONNX Runtime refuses models of opsets that it does not know yet, whatever is in them.
KNOWN_OPSET = 23


def in_known_opset(model):
    """The same model in an opset that ONNX Runtime knows, if its operators mean the same there."""
    for entry in model.opset_import:
        if entry.domain or entry.version <= KNOWN_OPSET:
            continue
        same = [onnx.defs.get_schema(n.op_type, entry.version).since_version ==
                onnx.defs.get_schema(n.op_type, KNOWN_OPSET).since_version
                for n in model.graph.node if not n.domain]
        if all(same):
            entry.version = KNOWN_OPSET
    return model


def by_onnxruntime(case):
    """The case with ONNX Runtime's outputs; None if it does not have the operators, or not in this
    form."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        with tempfile.TemporaryDirectory() as folder:
            case.write(pathlib.Path(folder) / "case")
            model = in_known_opset(onnx.load(pathlib.Path(folder) / "case/model.onnx"))
            session = onnxruntime.InferenceSession(model.SerializeToString(), options,
                                                   providers=["CPUExecutionProvider"])
            found = session.run(case.outputs, {n: case.values[n] for n in case.inputs})
    except Exception:
        return None
    other = copy.copy(case)
    other.values = {**case.values, **dict(zip(case.outputs, map(np.asarray, found)))}
    return other


def agrees_with_onnxruntime(case):
    """The reference is wrong now and then."""
    other = by_onnxruntime(case) if isinstance(case, Case) else None
    return other is not None and not failures({"other": other})[0]


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
    print(f"{len(ours) - len(never)} of {len(ours)} operators (without com.microsoft's) were met")
    if missed := [op for op in never if op in MAKERS]:
        print("not met:", " ".join(missed))
    for op in never:
        if op not in MAKERS:
            print(f"no maker: {op}: {reason(op)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--seed", type=int, default=0, help="of the first graph")
    parser.add_argument("--batch", type=int, default=40)
    parser.add_argument("--templates", action="store_true",
                        help="onnx's node tests with other values")
    parser.add_argument("--only", choices=sorted(MAKERS), help="graphs that have this operator")
    parser.add_argument("--keep", type=pathlib.Path, default=ROOT / "tests/repro")
    arguments = parser.parse_args()
    seed, start, found, refusals, ran, met = arguments.seed, time.monotonic(), 0, {}, 0, set()
    while time.monotonic() - start < arguments.seconds:
        cases = {f"fuzz{s}": random_case(s, arguments.templates, arguments.only)
                 for s in range(seed, seed + arguments.batch)}
        seed += arguments.batch
        cases = {name: case for name, case in cases.items() if case}
        ran += len(cases)
        for case in cases.values():
            met.update(operators(case.nodes))
        failed, refused = failures(cases)
        for message in refused:
            refusals[message] = refusals.get(message, 0) + 1
        for name, message in failed.items():
            small = shrink(cases[name])
            if agrees_with_onnxruntime(small):
                print(f"{name}: as ONNX Runtime, unlike the reference: {message}\n"
                      f"  {[n.op_type for n in small.nodes]}", flush=True)
                continue
            found += 1
            folder = arguments.keep / f"test_{name}"
            if not folder.exists():
                small.write(folder)
            print(f"{name}: {message}\n  {[n.op_type for n in small.nodes]} in {folder}", flush=True)
    for message, count in sorted(refusals.items(), key=lambda r: -r[1])[:10]:
        print(f"refused {count}: {message}")
    print_reach(met)
    print(f"{ran} graphs, {found} failures, {sum(refusals.values())} refused "
          f"(seeds {arguments.seed} to {seed - 1})")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
