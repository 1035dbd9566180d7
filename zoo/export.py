"""Exports the zoo's networks to zoo/<name>/graph.onnx: the graph without its weights.

    python zoo/export.py [NAME…]        (needs zoo/export-requirements.txt; not needed to use the zoo)

torch.onnx makes the graph from the network with random weights.  Every float initializer whose role
is known (a weight, bias, norm scale, variance, embedding table), and every other large one, is then
emptied and described by a seeded distribution in the model's metadata under `heddle.weights`; what
remains is kilobytes.  materialise.py fills the values in.  The distributions depend on the role, so
that activations keep a sensible scale through the depth: see `distribution`.
"""

import argparse
import collections
import io
import json
import lzma
import math
import pathlib

import onnx
import torch
from onnx import numpy_helper

from networks import LARGE, NETWORKS

OPSET = 17
LARGE_BYTES = 256 * 1024
KEEP_BYTES = 1024  # an initializer of unknown role up to this size stays as it is
NORMS = {"LayerNormalization", "InstanceNormalization", "GroupNormalization", "BatchNormalization"}
RECTIFIERS = {"Relu", "Clip", "LeakyRelu", "HardSwish", "Gelu", "Erf", "Sigmoid"}


def make_distinct(module):
    """Gives parameters that start equal (ones, zeros) different values: the exporter would merge
    them into one initializer, which no trained network has."""
    with torch.no_grad():
        statistics = [(n, b) for n, b in module.named_buffers() if "running_" in n]
        for name, tensor in list(module.named_parameters()) + statistics:
            if tensor.is_floating_point() and tensor.numel() > 1:
                tensor.add_(0.01 * torch.rand_like(tensor))


def to_onnx(network):
    buffer = io.BytesIO()
    torch.onnx.export(network.module, tuple(network.inputs.values()), buffer, dynamo=False,
                      opset_version=OPSET, input_names=list(network.inputs),
                      output_names=network.outputs)
    model = onnx.load_from_string(buffer.getvalue())
    onnx.checker.check_model(model)
    return model


class Uses:
    """Who reads each value of a graph."""

    def __init__(self, graph):
        self.readers = collections.defaultdict(list)
        self.constants = {tensor.name for tensor in graph.initializer}
        for node in graph.node:
            if node.op_type == "Constant":
                self.constants.update(node.output)
            for index, name in enumerate(node.input):
                self.readers[name].append((node, index))

    def gain(self, node):
        """How much the weights of `node` should amplify: a branch into a residual sum little (sums
        double the variance at each block otherwise), a layer before a rectifier √2 (He)."""
        value = node.output[0]
        while True:
            readers = self.readers[value]
            kinds = {reader.op_type for reader, _ in readers}
            if kinds & RECTIFIERS:
                return math.sqrt(2.0)
            if len(readers) == 1 and kinds == {"Add"}:
                add = readers[0][0]
                if not any(name in self.constants for name in add.input):
                    return 0.5
                value = add.output[0]  # that was the bias
                continue
            return 1.0


def distribution(tensor, uses):
    """The distribution for an initializer by the role in which it is read, or None."""
    shape = list(tensor.dims)
    for node, index in uses.readers[tensor.name]:
        op = node.op_type
        if op in NORMS and index > 0:
            return [{"normal": [1.0, 0.1]}, {"normal": [0.0, 0.1]}, {"normal": [0.0, 0.1]},
                    {"uniform": [0.5, 1.5]}][index - 1]
        if op in ("Conv", "ConvTranspose") and index == 1:
            fan_in = math.prod(shape[1:]) if op == "Conv" else shape[0]
            return {"normal": [0.0, uses.gain(node) / math.sqrt(fan_in)]}
        if op == "Gemm" and index == 1:
            transposed = any(a.name == "transB" and a.i for a in node.attribute)
            return {"normal": [0.0, uses.gain(node) / math.sqrt(shape[1 if transposed else 0])]}
        if op == "MatMul" and index == 1 and len(shape) >= 2:
            return {"normal": [0.0, uses.gain(node) / math.sqrt(shape[-2])]}
        if op in ("Conv", "ConvTranspose", "Gemm") and index == 2:
            return {"normal": [0.0, 0.1]}
        if op == "Gather" and index == 0 and len(shape) >= 2:
            return {"normal": [0.0, 0.5]}
        if op == "Add" and len(shape) == 1 and shape[0] > 1:
            return {"normal": [0.0, 0.1]}
    return None


def rounded(spec):
    return {kind: [float(f"{value:.6g}") for value in values] for kind, values in spec.items()}


def empty_weights(model, seed):
    """Replaces values by specs, in place; returns {initializer: spec}."""
    uses = Uses(model.graph)
    specs = {}
    for tensor in model.graph.initializer:
        if tensor.data_type != onnx.TensorProto.FLOAT:
            continue
        spec = distribution(tensor, uses)
        if spec is None:
            if 4 * math.prod(tensor.dims) <= KEEP_BYTES:
                continue
            values = numpy_helper.to_array(tensor)
            spec = {"normal": [float(values.mean()), float(values.std())]}
        specs[tensor.name] = {"seed": seed + len(specs), **rounded(spec)}
        tensor.ClearField("raw_data")
        tensor.ClearField("float_data")
    return specs


def strip(model):
    """Drops what only helps the exporter's debugging."""
    del model.graph.value_info[:]
    del model.graph.metadata_props[:]
    for node in model.graph.node:
        node.ClearField("doc_string")
        del node.metadata_props[:]


def export(name, folder):
    torch.manual_seed(0)
    network = (NETWORKS | LARGE)[name]()
    network.module.eval()
    make_distinct(network.module)
    with torch.no_grad():
        model = to_onnx(network)
    strip(model)
    weights = empty_weights(model, seed=1000)
    inputs = {key: {"seed": 1 + k, **spec} for k, (key, spec) in enumerate(network.specs.items())}
    onnx.helper.set_model_props(model, {
        "heddle.weights": json.dumps(weights, separators=(",", ":")),
        "heddle.inputs": json.dumps(inputs, separators=(",", ":"))})
    graph = model.SerializeToString(deterministic=True)
    path = folder / name / "graph.onnx"
    if len(graph) > LARGE_BYTES:  # shape arithmetic and masks, which compress well
        path, graph = path.with_suffix(".onnx.xz"), lzma.compress(graph)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(graph)
    ops = collections.Counter(node.op_type for node in model.graph.node)
    elements = sum(math.prod(t.dims) for t in model.graph.initializer if t.name in weights)
    print(f"{name}: {path.stat().st_size / 1024:.0f} KiB, {elements / 1e6:.1f} M weights, "
          f"{len(model.graph.node)} nodes: {dict(ops.most_common())}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(NETWORKS | LARGE))
    names = parser.parse_args().names or list(NETWORKS | LARGE)
    unknown = [name for name in names if name not in NETWORKS | LARGE]
    if unknown:
        parser.error(f"no network {unknown[0]!r}, want one of {', '.join(NETWORKS | LARGE)}")
    for name in names:
        folder = pathlib.Path(__file__).parent
        export(name, folder / "large" if name in LARGE else folder)


if __name__ == "__main__":
    main()
