"""Other forms of an ONNX model for comparisons on GPUs: computed in bf16, and with a larger batch.

    python bench/gpu_models.py MODEL.onnx OUT.onnx [--precision bf16] [--batch 16]

bf16: weights are stored and values computed in bf16 between casts, so that inputs and outputs keep
their types. Batch: the leading extent of inputs, and of the constant shapes of Reshape and Expand that
begin with it, grows; the result is checked with ONNX Runtime against the original, item by item, and
refused where they differ.
"""

import argparse
import sys

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

SHAPES = {"Reshape": 1, "Expand": 1}  # operator -> input that holds a shape


def to_bf16(model):
    graph = model.graph
    for tensor in [*graph.initializer,
                   *(a.t for n in graph.node for a in n.attribute if a.type == onnx.AttributeProto.TENSOR)]:
        if tensor.data_type != TensorProto.FLOAT:
            continue
        # Rounded to nearest even.
        bits = numpy_helper.to_array(tensor).astype(np.float32).view(np.uint32).astype(np.uint64)
        half = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
        name, dims = tensor.name, list(tensor.dims)
        tensor.Clear()
        tensor.name, tensor.data_type = name, TensorProto.BFLOAT16
        tensor.dims.extend(dims)
        tensor.raw_data = half.tobytes()
    for node in graph.node:
        for attribute in node.attribute:
            if node.op_type == "Cast" and attribute.name == "to" and attribute.i == TensorProto.FLOAT:
                attribute.i = TensorProto.BFLOAT16
    constants = {t.name for t in graph.initializer}
    rename, before, after = {}, [], []
    for port in graph.input:
        if port.name in constants or port.type.tensor_type.elem_type != TensorProto.FLOAT:
            continue
        rename[port.name] = port.name + "_bf16"
        before.append(helper.make_node("Cast", [port.name], [port.name + "_bf16"], to=TensorProto.BFLOAT16))
    for port in graph.output:
        if port.type.tensor_type.elem_type == TensorProto.FLOAT:
            rename[port.name] = port.name + "_bf16"
            after.append(helper.make_node("Cast", [port.name + "_bf16"], [port.name], to=TensorProto.FLOAT))
    for node in graph.node:
        node.input[:] = [rename.get(n, n) for n in node.input]
        node.output[:] = [rename.get(n, n) for n in node.output]
    nodes = [*before, *graph.node, *after]
    del graph.node[:]
    graph.node.extend(nodes)
    del graph.value_info[:]
    return model


def with_batch(model, batch):
    graph = model.graph
    constants = {t.name: t for t in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant":
            for attribute in node.attribute:
                if attribute.name == "value":
                    constants[node.output[0]] = attribute.t
    for port in graph.input:
        if port.name not in constants:
            port.type.tensor_type.shape.dim[0].dim_value = batch
    for port in graph.output:
        port.type.tensor_type.shape.dim[0].dim_value = batch
    done = set()
    for node in graph.node:
        name = node.input[SHAPES[node.op_type]] if node.op_type in SHAPES else None
        if name not in constants or name in done:
            continue
        done.add(name)
        shape = numpy_helper.to_array(constants[name]).copy()
        if shape.ndim == 1 and len(shape) > 1 and shape[0] == 1:
            shape[0] = batch
            own = constants[name].name
            constants[name].CopyFrom(numpy_helper.from_array(shape, own))
    del graph.value_info[:]
    return model


def check_batch(original, larger, batch):
    import onnxruntime

    def session(model):
        return onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])

    rng = np.random.default_rng(0)
    one, many = session(original), session(larger)
    inputs = {}
    for port in one.get_inputs():
        shape = [batch, *port.shape[1:]]
        inputs[port.name] = (rng.normal(size=shape).astype(np.float32) if port.type == "tensor(float)"
                             else rng.integers(0, 2, shape).astype(np.int64))
    found = many.run(None, inputs)
    for item in (0, batch - 1):
        wanted = one.run(None, {n: v[item:item + 1] for n, v in inputs.items()})
        for f, w in zip(found, wanted):
            scale = max(np.abs(w).max(), 1e-30)
            if f.shape[1:] != w.shape[1:] or np.abs(f[item] - w[0]).max() > 1e-3 * scale:
                sys.exit(f"batch {batch}: item {item} is not what the model gives alone")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("out")
    parser.add_argument("--precision", choices=["f32", "bf16"], default="f32")
    parser.add_argument("--batch", type=int, default=1)
    arguments = parser.parse_args()
    model = onnx.load(arguments.model)
    if arguments.batch > 1:
        model = with_batch(model, arguments.batch)
        check_batch(onnx.load(arguments.model), model, arguments.batch)
    if arguments.precision == "bf16":
        model = to_bf16(model)
    onnx.save(model, arguments.out)


if __name__ == "__main__":
    main()
