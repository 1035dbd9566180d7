"""heddle train: names of values, and files that are read and written."""
import json
import os
import pathlib
import re
import shutil
import unittest

import numpy as np
import onnx
import onnx.numpy_helper
import onnxruntime
from onnx import TensorProto, helper

from command import heddle, model
from training import TrainingTest


class TrainFilesTest(TrainingTest):
    def test_folders_are_looked_at_before_training(self):
        for flag in ("--output", "--checkpoint"):
            path = self.path / "nowhere" / "file"
            self.assert_fails(1, f"{flag} {path}: '{path.parent}' is no folder", *self.arguments(flag, path))
            self.assert_fails(1, "a folder, want a file", *self.arguments(flag, self.path))
            if os.geteuid() != 0:  # root may write anywhere
                locked = self.path / "locked"
                locked.mkdir(mode=0o500, exist_ok=True)
                self.assert_fails(1, "cannot be written to", *self.arguments(flag, locked / "file"))

    def test_no_file_takes_the_place_of_another(self):
        given = (self.network, self.path / "x.npy", self.path / "y.npy")
        before = [path.read_bytes() for path in map(pathlib.Path, given)]
        for flag in ("--output", "--checkpoint"):
            for path in given:
                self.assert_fails(1, f"{flag} {path}: the same file is {path} already", *self.arguments(flag, path))
            self.assert_fails(1, f"{flag} /dev/full: no regular file", *self.arguments(flag, "/dev/full"))
        self.assertEqual(before, [path.read_bytes() for path in map(pathlib.Path, given)])
        self.assert_fails(1, "the same file is", *self.arguments("-o", self.path / "z", "--checkpoint", self.path / "." / "z"))
        (self.path / "link").symlink_to(self.path / "far.onnx")
        self.train("-o", self.path / "link", "--steps", 1)
        self.assertTrue((self.path / "link").is_symlink())
        onnx.load(self.path / "far.onnx")
        self.train("--checkpoint", self.path / "c", "--steps", 1)
        done = heddle(*self.arguments("--checkpoint", self.path / "c", "--steps", 1))
        self.assertIn("will be replaced", done.stderr)

    def test_names_that_a_step_has_itself(self):
        """Weights may have any name: the trained values are those of plain names, to the bit."""
        random = np.random.default_rng(3)
        w1, w2 = (random.normal(size=shape).astype(np.float32) / 4 for shape in ((6, 32), (32, 3)))

        def network(first, second):
            return self.save(re.sub("[:.]", "-", f"of-{first}-{second}"), model(
                [helper.make_node("MatMul", ["x", first], ["m"]), helper.make_node("Relu", ["m"], ["h"]),
                 helper.make_node("MatMul", ["h", second], ["y"])], [("x", [8, 6])], [("y", [8, 3])],
                [onnx.numpy_helper.from_array(w1, first), onnx.numpy_helper.from_array(w2, second)]))

        def trained(first, second, more):
            self.network, out = network(first, second), self.path / "named.onnx"
            losses = self.train("--steps", 9, "-o", out, *more)["losses"]
            return losses, [self.initializers(out)[name].tobytes() for name in (first, second)]
        for first, second, *more in (
                ("mean:w", "w"), ("w", "variance:w"), ("w", "velocity:w", "--optimizer", "momentum"),
                ("w", "gradient:w", "--accumulate", 2), ("w", "loss_scale:good_steps", "--precision", "f16"),
                ("step", "target"), ("loss", "learning_rate"), ("draw", "loss_scale"), ("model:step", "step"),
                ("heddle.wide:w", "heddle.updated:w"), ("__metadata__", "w")):
            self.assertEqual(trained(first, second, more), trained("a", "b", more), (first, second))
        for names in (("mean:w", "w"), ("__metadata__", "w")):
            self.network, saved = network(*names), self.path / f"{names[0]}.safetensors"
            whole = self.train("--steps", 9)["losses"]
            self.train("--steps", 9, "--stop-after", 4, "--checkpoint", saved)
            self.assertEqual(self.train("--steps", 9, "--resume", "--checkpoint", saved)["losses"], whole[4:])

    def test_an_input_with_the_name_that_a_weight_gets(self):
        random = np.random.default_rng(3)
        w = random.normal(size=(8, 6)).astype(np.float32)

        def losses(data, weight):
            self.network = self.save("both", model(
                [helper.make_node("Mul", [data, weight], ["y"])], [(data, [8, 6])], [("y", [8, 6])],
                [onnx.numpy_helper.from_array(w, weight)]))
            np.save(self.path / "t.npy", self.x)
            done = heddle("train", self.network, "--data", f"{data}={self.path}/x.npy", "--target", f"{self.path}/t.npy",
                          "--loss", "mse", "--threads", "1", "--json")
            self.assertEqual(done.returncode, 0, done.stderr)
            return json.loads(done.stdout)["losses"]
        self.assertEqual(losses("model:step", "step"), losses("x", "w"))

    def test_inputs_with_names_of_a_step_are_refused(self):
        w = onnx.numpy_helper.from_array(np.ones((6, 3), np.float32), "w")
        np.save(self.path / "x.npy", self.x)
        for name in ("target", "step", "mean:w"):
            network = self.save("input", model([helper.make_node("MatMul", [name, "w"], ["y"])], [(name, [8, 6])],
                                               [("y", [8, 3])], [w]))
            self.assert_fails(1, f"input '{name}' of the model: training steps use this name themselves", "train", network,
                              "--data", f"{name}={self.path}/x.npy", "--target", f"{self.path}/y.npy")

    def test_external_data_are_not_overwritten(self):
        proto = onnx.load(self.network)
        onnx.save(proto, self.path / "apart.onnx", save_as_external_data=True, location="apart.data", size_threshold=0)
        before = (self.path / "apart.data").read_bytes()
        self.network = self.path / "apart.onnx"
        for flag in ("--output", "--checkpoint"):
            self.assert_fails(1, "apart.data: the same file is", *self.arguments(flag, self.path / "apart.data"))
        folder = self.path / "folder"
        folder.mkdir()
        shutil.copy(self.network, folder / "model.onnx")
        shutil.copy(self.path / "apart.data", folder)
        self.network = folder
        for name in ("model.onnx", "apart.data"):
            self.assert_fails(1, f"{name}: the same file is", *self.arguments("-o", folder / name))
        self.assertEqual((self.path / "apart.data").read_bytes(), before)
        self.assert_fails(1, "the same file is", *self.arguments("-o", self.path / "z", "--checkpoint", self.path / "z.part"))

    def test_what_is_exported_holds_external_data_of_bodies_and_constants(self):
        held = {"data": self.x[:6, :3].copy(), "then": self.x[6:12, :3].copy()}
        tensors = {}
        four = helper.make_tensor("q4", TensorProto.INT4, [3], [-8, 7, 3])
        four.raw_data = bytes([0x78, 0x03])  # two in a byte, the first one low
        four.ClearField("int32_data")
        for name, t in (*((n, onnx.numpy_helper.from_array(v, n)) for n, v in held.items()), ("q4", four)):
            tensors[name] = t
            (self.path / f"{name}.bin").write_bytes(t.raw_data)
            t.ClearField("raw_data")
            t.data_location = TensorProto.EXTERNAL
            entry = t.external_data.add()
            entry.key, entry.value = "location", f"{name}.bin"

        def branch(name, op, *more):
            out = [helper.make_tensor_value_info(f"{name}_out", TensorProto.FLOAT, [6, 3])]
            return helper.make_graph([helper.make_node(op, *more, [f"{name}_out"])], name, [], out,
                                     [tensors["then"]] if name == "then_branch" else [])
        self.network = self.save("bodies", model(
            [helper.make_node("Constant", [], ["c"], value=tensors["data"]),
             helper.make_node("If", ["yes"], ["b"], then_branch=branch("then_branch", "Identity", ["then"]),
                              else_branch=branch("else_branch", "Identity", ["c"])),
             helper.make_node("DequantizeLinear", ["q4", "one"], ["q"]),
             helper.make_node("Add", ["w", "c"], ["w0"]), helper.make_node("Add", ["w0", "q"], ["wc"]), helper.make_node("Add", ["wc", "b"], ["wb"]),
             helper.make_node("MatMul", ["x", "wb"], ["y"])], [("x", [8, 6])], [("y", [8, 3])],
            [onnx.numpy_helper.from_array(np.ones((6, 3), np.float32), "w"),
             onnx.numpy_helper.from_array(np.array(True), "yes"), tensors["q4"],
             onnx.numpy_helper.from_array(np.float32(1), "one")]))
        proto = onnx.load(self.network, load_external_data=False)
        proto.opset_import[0].version = 21
        self.network.write_bytes(proto.SerializeToString())
        out = self.path / "elsewhere"
        out.mkdir()
        self.train("--steps", 2, "-o", out / "trained.onnx")
        found = onnxruntime.InferenceSession(str(out / "trained.onnx")).run(None, {"x": self.x[:8]})[0]
        w = self.initializers(out / "trained.onnx")["w"]
        np.testing.assert_allclose(found, self.x[:8] @ (w + held["data"] + held["then"] + np.float32([-8, 7, 3])), rtol=1e-4, atol=1e-4)

    def test_places_that_cannot_be_written_are_said_first(self):
        for flag in ("--output", "--checkpoint"):
            done = heddle(*self.arguments(flag, "/proc/x"))
            self.assertEqual((done.returncode, done.stdout), (1, ""))
            self.assertIn(f"{flag} /proc/x: '/proc/x.part' cannot be written", done.stderr)
            self.assert_fails(2, "want a file's name", *self.arguments(flag, ""))


if __name__ == "__main__":
    unittest.main()
