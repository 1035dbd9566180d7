"""A small network with dropout and its data, for tests of heddle train."""
import json

import numpy as np
import onnx
import onnx.numpy_helper
from onnx import helper

from command import CommandTest, heddle, model


class TrainingTest(CommandTest):
    def setUp(self):
        super().setUp()
        random = np.random.default_rng(3)

        def weight(name, *shape):
            return onnx.numpy_helper.from_array((random.normal(size=shape) / shape[0] ** 0.5).astype(np.float32), name)
        self.network = self.save("network", model(
            [helper.make_node("MatMul", ["x", "w1"], ["m"]), helper.make_node("Relu", ["m"], ["h"]),
             helper.make_node("Dropout", ["h", "ratio"], ["d"], name="drop"),
             helper.make_node("MatMul", ["d", "w2"], ["y"])],
            [("x", [8, 6])], [("y", [8, 3])],
            [weight("w1", 6, 32), weight("w2", 32, 3), onnx.numpy_helper.from_array(np.float32(0.25), "ratio")]))
        self.x = random.normal(size=(80, 6)).astype(np.float32)
        np.save(self.path / "x.npy", self.x)
        np.save(self.path / "y.npy", self.x[:, :3].argmax(1))

    def arguments(self, *more):
        return ["train", str(self.network), "--data", f"x={self.path}/x.npy", "--target", f"{self.path}/y.npy",
                "--threads", "1", *map(str, more)]

    def train(self, *more):
        done = heddle(*self.arguments("--json", *more))
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def initializers(self, path):
        return {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer}
