"""Small networks with seeded weights, as ONNX files."""
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def weights(rng, name, *shape):
    values = rng.normal(size=shape) / np.sqrt(np.prod(shape[:-1]) if len(shape) > 1 else 1)
    return numpy_helper.from_array(values.astype(np.float32), name)


def save(path, nodes, inputs, outputs, initializers, opset=18):
    def info(ports):
        return [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in ports]
    graph = helper.make_graph(nodes, "g", info(inputs), info(outputs), initializers)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)]), path)
    return path


def convolutions(path):
    """Convolution, normalisation, pooling and a classifier; a residual."""
    rng = np.random.default_rng(1)
    node = helper.make_node
    nodes = [node("Conv", ["x", "w1", "b1"], ["c1"], name="stem", pads=[1, 1, 1, 1], strides=[2, 2]),
             node("Relu", ["c1"], ["r1"]),
             node("Conv", ["r1", "w2"], ["c2"], name="depthwise", pads=[1, 1, 1, 1], group=8),
             node("BatchNormalization", ["c2", "s", "o", "m", "v"], ["n2"], name="norm"),
             node("Add", ["n2", "r1"], ["a2"]),
             node("MaxPool", ["a2"], ["p2"], kernel_shape=[3, 3], strides=[2, 2]),
             node("GlobalAveragePool", ["p2"], ["g"]), node("Flatten", ["g"], ["f"]),
             node("Gemm", ["f", "w3", "b3"], ["l"], name="classes"),
             node("Softmax", ["l"], ["y"], axis=1)]
    return save(path, nodes, [("x", [2, 3, 13, 17])], [("y", [2, 10])],
                [weights(rng, "w1", 8, 3, 3, 3), weights(rng, "b1", 8), weights(rng, "w2", 8, 1, 3, 3),
                 weights(rng, "s", 8), weights(rng, "o", 8), weights(rng, "m", 8),
                 numpy_helper.from_array(np.linspace(0.5, 2, 8).astype(np.float32), "v"),
                 weights(rng, "w3", 8, 10), weights(rng, "b3", 10)])


def feed_forward(path, rows=128, width=64):
    """Two products: a bias and gelu after the first, a bias and a residual after the second."""
    rng = np.random.default_rng(3)
    node = helper.make_node
    init = [numpy_helper.from_array(np.array(v, np.float32), n)
            for n, v in [("half", 0.5), ("one", 1), ("root", 2 ** 0.5)]]
    init += [weights(rng, n, width, width) for n in ("w1", "w2")] + [weights(rng, n, width) for n in ("b1", "b2")]
    nodes = [node("MatMul", ["x", "w1"], ["p"], name="first"), node("Add", ["p", "b1"], ["h"]),
             node("Div", ["h", "root"], ["d"]), node("Erf", ["d"], ["e"]), node("Add", ["e", "one"], ["f"]),
             node("Mul", ["h", "half"], ["i"]), node("Mul", ["i", "f"], ["g"]),
             node("MatMul", ["g", "w2"], ["q"], name="second"), node("Add", ["q", "b2"], ["r"]),
             node("Add", ["r", "x"], ["y"])]
    return save(path, nodes, [("x", [rows, width])], [("y", [rows, width])], init)


def transformer(path, rows=19, width=24, heads=3):
    """One encoder layer: attention, residuals, layer norms, a feed-forward part with erf."""
    rng = np.random.default_rng(2)
    node = helper.make_node
    each = width // heads
    init = [numpy_helper.from_array(np.array(v, np.int64), n)
            for n, v in [("split", [rows, heads, each]), ("join", [rows, width])]]
    init += [numpy_helper.from_array(np.array(v, np.float32), n)
             for n, v in [("scale", each ** -0.5), ("half", 0.5), ("one", 1), ("root", 2 ** 0.5)]]
    init += [weights(rng, n, width, width) for n in ("wq", "wk", "wv", "wo")]
    init += [weights(rng, "w1", width, 4 * width), weights(rng, "w2", 4 * width, width),
             weights(rng, "b1", 4 * width)]
    init += [weights(rng, n, width) for n in ("g1", "o1", "g2", "o2")]
    nodes = []
    for p, order in (("q", [1, 0, 2]), ("k", [1, 2, 0]), ("v", [1, 0, 2])):
        nodes += [node("MatMul", ["x", "w" + p], [p]), node("Reshape", [p, "split"], [p + "s"]),
                  node("Transpose", [p + "s"], [p + "t"], perm=order)]
    nodes += [node("MatMul", ["qt", "kt"], ["scores"]), node("Mul", ["scores", "scale"], ["scaled"]),
              node("Softmax", ["scaled"], ["weights"], name="attention", axis=-1),
              node("MatMul", ["weights", "vt"], ["mixed"]),
              node("Transpose", ["mixed"], ["back"], perm=[1, 0, 2]),
              node("Reshape", ["back", "join"], ["joined"]), node("MatMul", ["joined", "wo"], ["out"]),
              node("Add", ["x", "out"], ["sum1"]),
              node("LayerNormalization", ["sum1", "g1", "o1"], ["n1"], name="norm1"),
              node("MatMul", ["n1", "w1"], ["h"]), node("Add", ["h", "b1"], ["hb"]),
              node("Div", ["hb", "root"], ["d"]), node("Erf", ["d"], ["e"]),
              node("Add", ["e", "one"], ["e1"]), node("Mul", ["hb", "e1"], ["he"]),
              node("Mul", ["he", "half"], ["gelu"]), node("MatMul", ["gelu", "w2"], ["h2"]),
              node("Add", ["n1", "h2"], ["sum2"]),
              node("LayerNormalization", ["sum2", "g2", "o2"], ["y"], name="norm2")]
    return save(path, nodes, [("x", [rows, width])], [("y", [rows, width])], init)


def halves(path, m=264, k=200, n=136):
    """A linear layer in f16 with a residual: what warpgroups multiply on a GPU that has them."""
    rng = np.random.default_rng(3)
    init = [numpy_helper.from_array((rng.normal(size=s) / np.sqrt(k)).astype(np.float16), name)
            for name, s in [("w", (k, n)), ("b", (n,))]]
    nodes = [helper.make_node("MatMul", ["x", "w"], ["p"]), helper.make_node("Add", ["p", "b"], ["s"]),
             helper.make_node("Relu", ["s"], ["r"]), helper.make_node("Add", ["r", "z"], ["y"])]
    port = helper.make_tensor_value_info
    graph = helper.make_graph(nodes, "g", [port("x", TensorProto.FLOAT16, [m, k]),
                                           port("z", TensorProto.FLOAT16, [m, n])],
                              [port("y", TensorProto.FLOAT16, [m, n])], init)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]), path)
    return path


def eighths(path):
    """Numbers to 8 bits and back, by casts and by scales: their bits are computed."""
    node, f8 = helper.make_node, TensorProto.FLOAT8E4M3FN
    nodes = [node("Cast", ["x"], ["c"], to=f8), node("Cast", ["c"], ["y1"], to=TensorProto.FLOAT),
             node("QuantizeLinear", ["x", "s", "z"], ["q"]), node("DequantizeLinear", ["q", "s"], ["y2"]),
             node("Add", ["y1", "y2"], ["y"])]
    zero = helper.make_tensor("z", f8, [], [0.0])
    return save(path, nodes, [("x", [5, 13])], [("y", [5, 13])],
                [numpy_helper.from_array(np.float32(0.25), "s"), zero], opset=19)


def counted(path):
    """How long the result is depends on values: it runs in stages."""
    node = helper.make_node
    nodes = [node("Tanh", ["x"], ["t"]), node("Greater", ["t", "zero"], ["g"]),
             node("Compress", ["t", "g"], ["c"], axis=0), node("Exp", ["c"], ["e"]),
             node("CumSum", ["e", "axis"], ["y"])]
    return save(path, nodes, [("x", [23])], [("y", ["n"])],
                [numpy_helper.from_array(np.float32(0.1), "zero"),
                 numpy_helper.from_array(np.int64(0), "axis")])


def perceptron(path):
    """Two layers, to be trained."""
    rng = np.random.default_rng(4)
    node = helper.make_node
    nodes = [node("Gemm", ["x", "w1", "b1"], ["h"]), node("Relu", ["h"], ["r"]),
             node("Gemm", ["r", "w2", "b2"], ["y"])]
    return save(path, nodes, [("x", [4, 6])], [("y", [4, 3])],
                [weights(rng, "w1", 6, 8), weights(rng, "b1", 8), weights(rng, "w2", 8, 3),
                 weights(rng, "b2", 3)])
