"""Random models whose shapes, branches and loops depend on their values, against ONNX Runtime.

random_numbers_test.py [FIRST LAST] tries the models of these seeds (the test: 40 of them).
"""
import random
import sys
import unittest

import numpy as np
import onnx
import onnx.numpy_helper
import onnxruntime
from onnx import TensorProto, helper

from command import CommandTest, heddle

FLOAT, INT, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
SEEDS = range(40)


class Vectors:
    """Builds a graph whose values are vectors of floats, of any length, none included."""

    def __init__(self, rng, prefix="", depth=0):
        self.rng, self.prefix, self.depth = rng, prefix, depth
        self.nodes, self.initializers, self.count = [], [], 0

    def name(self):
        self.count += 1
        return f"{self.prefix}v{self.count}"

    def op(self, kind, *inputs, outputs=1, **attributes):
        names = [self.name() for _ in range(outputs)]
        self.nodes.append(helper.make_node(kind, inputs, names, **attributes))
        return names[0] if outputs == 1 else names

    def constant(self, value, dtype=np.int64):
        name = self.name()
        self.initializers.append(onnx.numpy_helper.from_array(np.array(value, dtype), name))
        return name

    def real(self, low, high):
        return self.constant(self.rng.uniform(low, high), np.float32)

    def positives(self, x, keepdims=0):
        above = self.op("Cast", self.op("Greater", x, self.constant(0, np.float32)), to=INT)
        return self.op("ReduceSum", above, keepdims=keepdims)

    def inner(self):
        return Vectors(self.rng, self.prefix + self.name() + "_", self.depth + 1)

    # Each of these gives a vector for a vector.
    def nonzero(self, x):
        where = self.op("NonZero", self.op("Greater", x, self.real(-.5, .5)))
        return self.op("Gather", x, self.op("Squeeze", where, self.constant([0])), axis=0)

    def compress(self, x):
        return self.op("Compress", x, self.op("Less", x, self.real(0, 1)), axis=0)

    def unique(self, x):
        rounded = self.op("Round", self.op("Mul", x, self.constant(3, np.float32)))
        found = self.op("Unique", rounded, outputs=4, sorted=self.rng.randrange(2))
        return self.op("Add", found[0], self.op("Cast", found[3], to=FLOAT))

    def top(self, x):
        more = self.op("Add", self.op("Shape", x), self.constant([1]))
        return self.op("TopK", x, self.op("Div", more, self.constant([2])), outputs=2, axis=0)[0]

    def slice(self, x):
        end = self.op("Add", self.positives(x, 1), self.constant([1]))
        return self.op("Slice", x, self.constant([0]), end, self.constant([0]))

    def pad(self, x):
        before = self.op("Mod", self.positives(x, 1), self.constant([3]))
        return self.op("Pad", x, self.op("Concat", before, self.constant([1]), axis=0))

    def softmax(self, x):
        longer = self.op("Concat", x, self.constant([.5, .25], np.float32), axis=0)
        return self.op("Softmax", longer, axis=0)

    def tanh(self, x):
        return self.op("Tanh", self.op("Mul", x, self.real(-2, 2)))

    def range(self, x):
        end = self.op("Add", self.positives(x), self.constant(1))
        numbers = self.op("Range", self.constant(0), end, self.constant(1))
        return self.op("Sin", self.op("Cast", numbers, to=FLOAT))

    def expand(self, x):
        shape = self.op("Concat", self.constant([2]), self.op("Shape", x), axis=0)
        return self.op("Reshape", self.op("Expand", x, shape), self.constant([-1]))

    def branch(self, x):
        total = self.op("ReduceSum", x, keepdims=0)
        bodies = {}
        for name in ("then_branch", "else_branch"):
            inner = self.inner()
            y = inner.op("Neg", inner.steps(x, 2))
            bodies[name] = helper.make_graph(
                inner.nodes, name, [], [helper.make_tensor_value_info(y, FLOAT, None)],
                inner.initializers)
        return self.op("If", self.op("Greater", total, self.real(-1, 1)), **bodies)

    def loop(self, x):
        inner = self.inner()
        turn, go, state = inner.name(), inner.name(), inner.name()
        y = inner.op("Abs", inner.steps(state, 2))
        if self.rng.random() < .5:  # x is read from around the loop
            filled = inner.op("Concat", x, inner.constant([0], np.float32), axis=0)
            y = inner.op("Add", inner.op("Mul", y, inner.real(.5, .9)),
                         inner.op("ReduceMean", filled, keepdims=0))
        total = inner.op("ReduceSum", y, keepdims=0)
        on = (inner.op("Less", total, inner.real(1, 30)) if self.rng.random() < .6
              else inner.op("Identity", go))
        info = helper.make_tensor_value_info
        body = helper.make_graph(
            inner.nodes, "body", [info(turn, INT, []), info(go, BOOL, []), info(state, FLOAT, [None])],
            [info(on, BOOL, []), info(y, FLOAT, [None]), info(total, FLOAT, [])],
            inner.initializers)
        times = self.op("Mod", self.positives(x), self.constant(4))
        last, totals = self.op("Loop", times, "", x, outputs=2, body=body)
        return self.op("Concat", last, totals, axis=0) if self.rng.random() < .5 else last

    def steps(self, x, most):
        flat = [self.nonzero, self.compress, self.unique, self.top, self.slice, self.pad,
                self.softmax, self.tanh, self.range, self.expand]
        for _ in range(self.rng.randrange(1, most + 1)):
            x = self.rng.choice(flat + ([self.branch, self.loop] * 2 if self.depth < 2 else []))(x)
        return x


def random_model(seed):
    vectors = Vectors(random.Random(seed))
    y = vectors.steps("x", 4)
    length = vectors.rng.choice([6, 9, 13])
    graph = helper.make_graph(vectors.nodes, "g", [helper.make_tensor_value_info("x", FLOAT, [length])],
                              [helper.make_tensor_value_info(y, FLOAT, [None])],
                              vectors.initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


class RandomNumbers(CommandTest):
    def test_agrees_with_onnx_runtime(self):
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.log_severity_level = 4
        staged = 0
        for seed in SEEDS:
            path = self.save("model", random_model(seed))
            session = onnxruntime.InferenceSession(path, options,
                                                   providers=["CPUExecutionProvider"])
            x = np.random.default_rng(seed).normal(
                size=session.get_inputs()[0].shape).astype(np.float32)
            np.save(self.path / "x.npy", x)
            want = session.run(None, {"x": x})[0]
            done = heddle("run", path, "--input", f"x={self.path / 'x.npy'}", "--save",
                          self.path / "y.npy")
            self.assertEqual(done.returncode, 0, f"seed {seed}: {done.stderr}")
            found = np.load(self.path / "y.npy")
            self.assertEqual(found.shape, want.shape, f"seed {seed}")
            np.testing.assert_allclose(found, want, rtol=2e-3, atol=1e-4, err_msg=f"seed {seed}")
            staged += "run in stages" in done.stdout
        self.assertGreater(staged, len(SEEDS) // 2)


if __name__ == "__main__":
    if len(sys.argv) == 3:
        SEEDS = range(int(sys.argv.pop(1)), int(sys.argv.pop(1)))
    unittest.main()
