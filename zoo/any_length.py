"""BERT-base or MiniLM-L6 for sentences of any length: the zoo's network with symbolic length.

    python zoo/any_length.py build/zoo/bert-base/model.onnx OUT.onnx

The network's positions and shapes are constants of 128 tokens; here they are computed from the
length S of the input, with the operators that exporters make of `arange` and `view`.
"""

import sys

import numpy as np
import onnx
from onnx import helper, numpy_helper

TOKENS = 128


def replaced(node, value):
    """Nodes and constants that make what the constant node makes, for S tokens; None: it is no
    matter of the length."""
    name = node.output[0]
    made = {}

    def constant(key, numbers):
        made[f"{name}/{key}"] = np.asarray(numbers, np.int64)
        return f"{name}/{key}"

    if TOKENS in value.shape:
        assert (value.ravel() == np.arange(TOKENS)).all(), name
        shape = [-1 if n == TOKENS else n for n in value.shape]
        nodes = [helper.make_node("Range", [constant("zero", 0), "any_length/S", constant("one", 1)],
                                  [f"{name}/range"]),
                 helper.make_node("Reshape", [f"{name}/range", constant("shape", shape)], [name])]
    elif value.dtype == np.int64 and TOKENS in value:
        parts = ["any_length/S1" if n == TOKENS else constant(str(i), [n])
                 for i, n in enumerate(value)]
        nodes = [helper.make_node("Concat", parts, [name], axis=0)]
    else:
        return None
    return nodes, [numpy_helper.from_array(v, k) for k, v in made.items()]


def main(source, target):
    model = onnx.load(source)
    graph = model.graph
    nodes = [helper.make_node("Shape", ["input_ids"], ["any_length/S1"], start=1, end=2),
             helper.make_node("Squeeze", ["any_length/S1"], ["any_length/S"])]
    for node in graph.node:
        value = numpy_helper.to_array(node.attribute[0].t) if node.op_type == "Constant" else None
        made = None if value is None else replaced(node, value)
        if made is None:
            nodes.append(node)
            continue
        nodes += made[0]
        graph.initializer.extend(made[1])
    del graph.node[:]
    graph.node.extend(nodes)
    for port in [*graph.input, *graph.output]:
        for dim in port.type.tensor_type.shape.dim:
            if dim.dim_value == TOKENS:
                dim.dim_param = "S"
    del graph.value_info[:]
    onnx.save(model, target)


if __name__ == "__main__":
    main(*sys.argv[1:])
