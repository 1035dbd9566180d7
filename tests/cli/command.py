"""The command, models and temporary files for tests."""
import os
import pathlib
import subprocess
import tempfile
import unittest

import numpy as np
import onnx.numpy_helper
from onnx import TensorProto, helper

HEDDLE = os.environ["HEDDLE"]


def heddle(*arguments, timeout=60):
    return subprocess.run([HEDDLE, *map(str, arguments)], capture_output=True, text=True,
                          timeout=timeout)


def model(nodes, inputs, outputs, initializers=()):
    def info(ports):
        return [helper.make_tensor_value_info(n, *(type or [TensorProto.FLOAT]), s) for n, s, *type in ports]
    graph = helper.make_graph(nodes, "g", info(inputs), info(outputs), list(initializers))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])


class CommandTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.path = pathlib.Path(self.folder.name)
        os.environ["HEDDLE_CACHE_DIR"] = str(self.path / "cache")
        self.good = self.save("good", model(
            [helper.make_node("Softmax", ["x"], ["s"], name="soft", axis=1),
             helper.make_node("Add", ["s", "x"], ["y"], name="sum")],
            [("x", [3, 37])], [("y", [3, 37])]))

    def tearDown(self):
        self.folder.cleanup()

    def save(self, name, proto):
        path = self.path / f"{name}.onnx"
        path.write_bytes(proto.SerializeToString())
        return path

    def given(self, inputs):
        """The inputs, by name, as arguments of `heddle run`."""
        arguments = []
        for name, value in inputs.items():
            np.save(self.path / f"{name}.npy", value)
            arguments += ["--input", f"{name}={self.path / name}.npy"]
        return arguments

    def assert_fails(self, code, part, *arguments):
        done = heddle(*arguments)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        self.assertIn(part, done.stderr)

    def weighted(self):
        """y = softmax(x·w) with normalised x; weights of a size that storing halves."""
        w = np.random.default_rng(1).normal(size=(64, 300)).astype(np.float32)
        return self.save("weighted", model(
            [helper.make_node("LayerNormalization", ["x", "g"], ["n"], epsilon=1e-12, name="norm"),
             helper.make_node("MatMul", ["n", "w"], ["m"], name="product"),
             helper.make_node("Softmax", ["m"], ["y"], axis=1, name="soft")],
            [("x", [5, 64])], [("y", [5, 300])],
            [onnx.numpy_helper.from_array(np.ones(64, np.float32), "g"),
             onnx.numpy_helper.from_array(w, "w")]))
