"""A small CNN and a small transformer for scikit-learn's digits, as ONNX models with seeded weights."""
import numpy as np
import onnx
import onnx.numpy_helper
from onnx import TensorProto, helper

BATCH = 64
WIDTH, HEADS, BLOCKS, TOKENS = 32, 2, 2, 16


class Maker:
    """Nodes and initializers of a model; names of values are those of their nodes."""

    def __init__(self, seed):
        self.random = np.random.default_rng(seed)
        self.nodes, self.weights = [], []

    def node(self, op, name, *inputs, **attributes):
        self.nodes.append(helper.make_node(op, list(inputs), [name], name=name, **attributes))
        return name

    def constant(self, name, value):
        self.weights.append(onnx.numpy_helper.from_array(np.asarray(value), name))
        return name

    def drawn(self, name, shape, fan):
        value = self.random.normal(size=shape) / np.sqrt(fan)
        return self.constant(name, value.astype(np.float32))

    def filled(self, name, shape, value):
        return self.constant(name, np.full(shape, value, np.float32))

    def linear(self, name, x, rows, columns):
        product = self.node("MatMul", f"{name}.product", x, self.drawn(f"{name}.w", (rows, columns), rows))
        return self.node("Add", name, product, self.filled(f"{name}.b", (columns,), 0))

    def norm(self, name, x):
        return self.node("LayerNormalization", name, x, self.filled(f"{name}.g", (WIDTH,), 1),
                         self.filled(f"{name}.b", (WIDTH,), 0), axis=-1, epsilon=1e-5)

    def model(self, x, y, batch):
        def port(name, shape):
            return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        graph = helper.make_graph(self.nodes, "digits", [port(x, [batch, 1, 8, 8])],
                                  [port(y, [batch, 10])], self.weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
        onnx.checker.check_model(model)
        return model


def cnn(batch=BATCH, seed=1):
    m = Maker(seed)
    h, channels = "x", 1
    for i, out in enumerate((16, 32)):
        h = m.node("Conv", f"conv{i}", h, m.drawn(f"conv{i}.w", (out, channels, 3, 3), 9 * channels / 2),
                   m.filled(f"conv{i}.b", (out,), 0), pads=[1, 1, 1, 1])
        h = m.node("MaxPool", f"pool{i}", m.node("Relu", f"relu{i}", h), kernel_shape=[2, 2], strides=[2, 2])
        channels = out
    h = m.linear("y", m.node("Flatten", "flat", h), 4 * channels, 10)
    return m.model("x", h, batch)


def transformer(batch=BATCH, seed=2):
    m = Maker(seed)
    shape = m.constant("patches.shape", np.array([batch, 4, 2, 4, 2], np.int64))
    tokens = m.constant("tokens.shape", np.array([batch, TOKENS, 4], np.int64))
    split = m.constant("heads.shape", np.array([batch, TOKENS, HEADS, WIDTH // HEADS], np.int64))
    merge = m.constant("merged.shape", np.array([batch, TOKENS, WIDTH], np.int64))
    h = m.node("Transpose", "patches", m.node("Reshape", "rows", "x", shape), perm=[0, 1, 3, 2, 4])
    h = m.linear("embed", m.node("Reshape", "tokens", h, tokens), 4, WIDTH)
    h = m.node("Add", "placed", h, m.drawn("position", (TOKENS, WIDTH), WIDTH))
    scale = m.constant("scale", np.float32((WIDTH // HEADS) ** -0.5))
    for i in range(BLOCKS):
        n = m.norm(f"norm{i}", h)

        def heads(name, order):
            flat = m.linear(f"{name}{i}", n, WIDTH, WIDTH)
            return m.node("Transpose", f"{name}{i}.heads", m.node("Reshape", f"{name}{i}.split", flat, split),
                          perm=order)
        scores = m.node("MatMul", f"scores{i}", heads("q", [0, 2, 1, 3]), heads("k", [0, 2, 3, 1]))
        shares = m.node("Softmax", f"shares{i}", m.node("Mul", f"scaled{i}", scores, scale), axis=-1)
        seen = m.node("Transpose", f"seen{i}", m.node("MatMul", f"read{i}", shares, heads("v", [0, 2, 1, 3])),
                      perm=[0, 2, 1, 3])
        seen = m.linear(f"out{i}", m.node("Reshape", f"merged{i}", seen, merge), WIDTH, WIDTH)
        h = m.node("Add", f"attended{i}", h, seen)
        wide = m.node("Gelu", f"gelu{i}", m.linear(f"up{i}", m.norm(f"norm_mlp{i}", h), WIDTH, 2 * WIDTH))
        h = m.node("Add", f"block{i}", h, m.linear(f"down{i}", wide, 2 * WIDTH, WIDTH))
    axes = m.constant("token.axis", np.array([1], np.int64))
    mean = m.node("ReduceMean", "mean", m.norm("norm", h), axes, keepdims=0)
    return m.model("x", m.linear("y", mean, WIDTH, 10), batch)


NETWORKS = {"cnn": cnn, "transformer": transformer}
# What each is trained with, here and in PyTorch, and the share of unseen digits that it gets right at least.
RECIPES = {
    "cnn": {"optimizer": "momentum", "rate": 0.02, "epochs": 8, "accuracy": 0.96},
    "transformer": {"optimizer": "adamw", "rate": 2e-3, "epochs": 12, "accuracy": 0.94},
}
DECAY = 0.01


def digits():
    """Images [n, 1, 8, 8] between 0 and 1 and classes: 1437 to train on, 360 unseen."""
    from sklearn.datasets import load_digits
    data = load_digits()
    order = np.random.default_rng(0).permutation(len(data.images))
    x = (data.images[order] / 16).astype(np.float32)[:, None]
    y = data.target[order].astype(np.int64)
    return (x[:1437], y[:1437]), (x[1437:], y[1437:])
