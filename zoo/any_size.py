"""YOLOX-nano for images of any size: the zoo's network with symbolic height and width.

    python zoo/any_size.py build/zoo/yolox-nano/model.onnx OUT.onnx

The network's grid and strides are constants of 416²; here they are computed from the shapes of the
three heads, with the operators that exporters make of `meshgrid` and `arange`.  Height and width
are H and W, multiples of 32.  The weights stay as they are.
"""

import sys

import numpy as np
import onnx
from onnx import helper, numpy_helper

STRIDES = (8, 16, 32)


class Nodes:
    """Nodes and constants to be added to a graph."""

    def __init__(self):
        self.nodes, self.constants = [], []

    def constant(self, value, dtype=np.int64):
        name = f"any_size/c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def add(self, op, *inputs, **attributes):
        name = f"any_size/{op}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], name=name, **attributes))
        return name


def level(made, head, stride):
    """[1, h·w, 2] positions and [1, h·w, 1] strides of a head's output [1, 85, h, w]."""
    shape = made.add("Shape", head)
    extents = [made.add("Gather", shape, made.constant(axis)) for axis in (2, 3)]
    lines = [made.add("Range", made.constant(0), n, made.constant(1)) for n in extents]
    plane = made.add("Slice", shape, made.constant([2]), made.constant([4]))
    y = made.add("Expand", made.add("Unsqueeze", lines[0], made.constant([1])), plane)
    x = made.add("Expand", made.add("Unsqueeze", lines[1], made.constant([0])), plane)
    pair = [made.add("Unsqueeze", v, made.constant([2])) for v in (x, y)]
    grid = made.add("Reshape", made.add("Concat", *pair, axis=2), made.constant([1, -1, 2]))
    count = made.add("Concat", made.constant([1]), made.add("Unsqueeze", made.add("Mul", *extents),
                     made.constant([0])), made.constant([1]), axis=0)
    return (made.add("Cast", grid, to=onnx.TensorProto.FLOAT),
            made.add("Expand", made.constant(stride, np.float32), count))


def main(path, out):
    model = onnx.load(path)
    graph = model.graph
    dims = graph.input[0].type.tensor_type.shape.dim
    dims[2].dim_param, dims[3].dim_param = "H", "W"
    graph.output[0].type.tensor_type.shape.dim[1].dim_param = "N"
    made = Nodes()
    heads = [f"/heads.{i}/Concat_output_0" for i in range(3)]
    levels = [level(made, head, stride) for head, stride in zip(heads, STRIDES)]
    grid = made.add("Concat", *[l[0] for l in levels], axis=1)
    strides = made.add("Concat", *[l[1] for l in levels], axis=1)
    wide = {node.output[0]: grid if node.attribute[0].t.dims[2] == 2 else strides
            for node in graph.node if node.op_type == "Constant"
            and list(node.attribute[0].t.dims[:2]) == [1, 3549]}
    for node in graph.node:
        for i, name in enumerate(node.input):
            node.input[i] = wide.get(name, name)
    for node in [n for n in graph.node if n.output[0] in wide]:
        graph.node.remove(node)
    last = max(i for i, node in enumerate(graph.node) if set(node.output) & set(heads))
    for node in reversed(made.nodes):
        graph.node.insert(last + 1, node)
    graph.initializer.extend(made.constants)
    onnx.checker.check_model(model)
    onnx.save(model, out)


if __name__ == "__main__":
    main(*sys.argv[1:])
