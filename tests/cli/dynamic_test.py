"""One artefact for several sizes of a model's inputs."""
import json
import pathlib
import subprocess
import sys
import unittest

import numpy as np
import onnx.numpy_helper
import onnxruntime
from onnx import TensorProto, helper

from command import CommandTest, heddle, model

ROOT = pathlib.Path(__file__).resolve().parents[2]
DETECTOR = ROOT / "build/zoo/yolox-nano/model.onnx"


def constant(name, value):
    return onnx.numpy_helper.from_array(np.asarray(value), name)


def attention():
    """Self-attention over S tokens with a class token in front, and the mean over all of them."""
    rng = np.random.default_rng(2)
    weights = [constant(n, rng.normal(size=(8, 8)).astype(np.float32) / 3) for n in "qkv"]
    nodes = [helper.make_node("Concat", ["cls", "x"], ["t"], axis=0, name="cat")]
    for n in "qkv":
        nodes.append(helper.make_node("MatMul", ["t", n], [n + "0"], name=n))
    nodes += [
        helper.make_node("Transpose", ["k0"], ["kt"], perm=[1, 0]),
        helper.make_node("MatMul", ["q0", "kt"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["p"], axis=-1, name="soft"),
        helper.make_node("MatMul", ["p", "v0"], ["y"]),
        helper.make_node("ReduceMean", ["y", "axes"], ["mean"], keepdims=0, name="mean"),
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("CumSum", ["y", "zero"], ["sums"], reverse=1, name="sums"),
    ]
    return model(nodes, [("x", ["S", 8])], [("y", [None, 8]), ("mean", [8]), ("sums", [None, 8])],
                 weights + [constant("cls", rng.normal(size=(1, 8)).astype(np.float32)),
                            constant("axes", np.array([0])), constant("zero", np.array(0))])


def convolutions():
    """Strides, pools with and without padding in the count, upsampling and a skip, to one row."""
    rng = np.random.default_rng(3)
    w = [constant(f"w{i}", rng.normal(size=s).astype(np.float32) / 4)
         for i, s in enumerate([(4, 3, 3, 3), (4, 4, 3, 3), (4, 4, 2, 2)])]
    nodes = [
        helper.make_node("Conv", ["x", "w0"], ["a"], pads=[1, 1, 1, 1], name="first"),
        helper.make_node("MaxPool", ["a"], ["b"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Conv", ["b", "w1"], ["c"], pads=[1, 1, 1, 1], name="second"),
        helper.make_node("AveragePool", ["c"], ["d"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        helper.make_node("ConvTranspose", ["d", "w2"], ["e"], strides=[2, 2], name="up"),
        helper.make_node("Concat", ["a", "e"], ["f"], axis=1),
        helper.make_node("GlobalAveragePool", ["f"], ["g"], name="pool"),
        helper.make_node("Reshape", ["f", "rows"], ["r"], name="rows"),
    ]
    return model(nodes, [("x", [1, 3, "H", "W"])], [("g", [1, 8, 1, 1]), ("r", [1, 8, None])],
                 w + [constant("rows", np.array([1, 8, -1]))])


class Dynamic(CommandTest):
    def agrees(self, path, artefact, x, name="x"):
        """Runs the artefact on x and compares with ONNX Runtime."""
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        wanted = session.run(None, {name: x})
        saved = self.path / "saved"
        saved.mkdir(exist_ok=True)
        np.save(self.path / "x.npy", x)
        done = heddle("run", artefact, "--input", f"{name}={self.path / 'x.npy'}", "--save", saved)
        self.assertEqual(done.returncode, 0, done.stderr)
        for k, value in enumerate(wanted):
            found = np.load(saved / f"output_{k}.npy")
            np.testing.assert_allclose(found, value, rtol=1e-4, atol=1e-5)

    def test_attention_of_any_length_runs_from_one_artefact(self):
        path, artefact = self.save("attention", attention()), self.path / "a.heddle"
        done = heddle("compile", path, "--dynamic", "S=1..19@4,8,19", "-o", artefact, "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(json.loads(done.stdout)["sizes"], 19)
        rng = np.random.default_rng(5)
        for n in range(1, 20):
            self.agrees(path, artefact, rng.normal(size=(n, 8)).astype(np.float32))
        self.assert_fails(2, "no program for these sizes", "run", artefact, "--size", "S=20")
        done = heddle("explain", artefact, "--size", "S=5")
        self.assertIn("dispatch table, 19 sizes", done.stdout)
        self.assertIn("S=5..7 (3 sizes) as x [8,8]", done.stdout)
        done = heddle("verify", path, "--dynamic", "S=1..19@19", "--size", "S=13")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_convolutions_of_any_image_size(self):
        path, artefact = self.save("conv", convolutions()), self.path / "c.heddle"
        done = heddle("compile", path, "--dynamic", "H=4..12:2@12", "--dynamic", "W=4..10:2@6,10",
                      "-o", artefact)
        self.assertEqual(done.returncode, 0, done.stderr)
        rng = np.random.default_rng(6)
        for h, w in [(4, 4), (6, 10), (12, 4), (10, 8), (12, 10), (8, 6)]:
            self.agrees(path, artefact, rng.normal(size=(1, 3, h, w)).astype(np.float32))

    def test_maps_that_are_resized_to_others(self):
        """Odd and even extents halve, and are resized, in unlike ways; so are larger and smaller
        ones to a fixed extent."""
        rng = np.random.default_rng(9)
        node = helper.make_node
        weights = [constant("w", rng.normal(size=(3, 3, 3, 3)).astype(np.float32)),
                   constant("no", np.array([], np.float32)), constant("fixed", np.array([1, 3, 9, 6]))]
        nodes = [node("Conv", ["x", "w"], ["half"], pads=[1, 1, 1, 1], strides=[2, 2], name="down"),
                 node("Shape", ["x"], ["size"]),
                 node("Resize", ["half", "no", "no", "size"], ["up"], mode="nearest", name="up",
                      coordinate_transformation_mode="asymmetric", nearest_mode="floor"),
                 node("Add", ["up", "x"], ["sum"]),
                 node("Resize", ["sum", "no", "no", "fixed"], ["y"], mode="linear", name="fix")]
        path, artefact = self.save("pyramid", model(
            nodes, [("x", [1, 3, "H", "W"])], [("y", [1, 3, 9, 6])], weights)), self.path / "p.heddle"
        done = heddle("compile", path, "--dynamic", "H=4..17@9,17", "--dynamic", "W=5..8@8", "-o",
                      artefact, "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertLessEqual(json.loads(done.stdout)["programs"], 24)
        for h in range(4, 18):
            for w in (5, 6, 8):
                self.agrees(path, artefact, rng.normal(size=(1, 3, h, w)).astype(np.float32))

    def test_bodies_have_constants_of_their_own(self):
        """The size chooses the branch, of which each adds another constant."""
        def body(name, values):
            return helper.make_graph(
                [helper.make_node("Add", ["x", name + "c"], [name])], name, [],
                [helper.make_tensor_value_info(name, TensorProto.FLOAT, None)],
                [constant(name + "c", np.array(values, np.float32))])
        node = helper.make_node
        nodes = [node("Shape", ["x"], ["n"]), node("Less", ["n", "three"], ["few"]),
                 node("If", ["few"], ["y"], then_branch=body("a", [-5]), else_branch=body("b", [2]),
                      name="first"),
                 node("Less", ["n", "five"], ["some"]),
                 node("If", ["some"], ["z"], then_branch=body("d", [7]), else_branch=body("e", [9]),
                      name="second")]
        path, artefact = self.save("branches", model(
            nodes, [("x", ["L"])], [("y", ["L"]), ("z", ["L"])],
            [constant("three", np.array([3])), constant("five", np.array([5]))])), self.path / "b"
        done = heddle("compile", path, "--dynamic", "L=1..8", "-o", artefact)
        self.assertEqual(done.returncode, 0, done.stderr)
        for n in range(1, 9):
            self.agrees(path, artefact, np.arange(n, dtype=np.float32))

    @unittest.skipUnless(DETECTOR.exists(), "scripts/zoo.sh makes it")
    def test_a_detector_takes_images_of_any_size(self):
        path, artefact = self.path / "any.onnx", self.path / "any.heddle"
        subprocess.run([sys.executable, ROOT / "zoo/any_size.py", DETECTOR, path], check=True)
        done = heddle("compile", path, "--dynamic", "H=64..128:32@128", "--dynamic",
                      "W=64..128:32@64,128", "-o", artefact, timeout=200)
        self.assertEqual(done.returncode, 0, done.stderr)
        rng = np.random.default_rng(8)
        for h, w in [(64, 64), (96, 64), (64, 128), (128, 96), (128, 128)]:
            self.agrees(path, artefact, rng.normal(size=(1, 3, h, w)).astype(np.float32), "image")

    def test_recurrent_operators_take_sequences_of_any_length(self):
        rng = np.random.default_rng(7)
        weight = lambda name, *shape: constant(name, rng.normal(size=shape).astype(np.float32))
        kinds = (("LSTM", 4), ("GRU", 3), ("RNN", 1))
        for (op, gates), both in ((kind, both) for kind in kinds for both in (True, False)):
            ways = 2 if both else 1
            nodes = [helper.make_node(op, ["x", "w", "r", "b"], ["y", "h"], hidden_size=2, name=op,
                                      direction="bidirectional" if both else "forward")]
            if not both:  # as PyTorch writes it
                nodes.append(helper.make_node("Squeeze", ["y", "ways"], ["z"]))
            outputs = ("y", "h") if both else ("z", "h")
            graph = helper.make_graph(
                nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["T", 2, 3])],
                [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs],
                [weight("w", ways, 2 * gates, 3), weight("r", ways, 2 * gates, 2),
                 weight("b", ways, 4 * gates), constant("ways", np.array([1]))])
            path = self.save(op, helper.make_model(
                graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9))
            artefact = self.path / f"{op}.heddle"
            done = heddle("compile", path, "--dynamic", "T=1..7@7", "-o", artefact)
            self.assertEqual(done.returncode, 0, done.stderr)
            for n in (1, 2, 5, 6, 7):
                self.agrees(path, artefact, rng.normal(size=(n, 2, 3)).astype(np.float32))

    def test_what_is_read_backwards_has_any_length(self):
        turn = [constant("start", np.array([-1])), constant("end", np.array([-(1 << 40)])),
                constant("axis", np.array([0])), constant("step", np.array([-1])),
                constant("two", np.array([-2]))]
        reverse = lambda to, step="step": helper.make_node(
            "Slice", ["x", "start", "end", "axis", step], [to], name=to)
        for name, nodes in {
                "flip": [reverse("r"), helper.make_node("Softmax", ["r"], ["y"], axis=0)],
                "every_other": [reverse("r", "two"),
                                helper.make_node("ReduceSum", ["r"], ["y"], keepdims=0)],
                "both_ways": [reverse("r"), helper.make_node("Concat", ["r", "x", "r"], ["c"], axis=0),
                              helper.make_node("CumSum", ["c", "axis0"], ["y"])],
                "reverse": [helper.make_node("Shape", ["x"], ["s"], end=1),
                            helper.make_node("Expand", ["s", "three"], ["lengths"]),
                            helper.make_node("ReverseSequence", ["x", "lengths"], ["r"], time_axis=0,
                                             batch_axis=1),
                            helper.make_node("CumSum", ["r", "axis0"], ["y"])]}.items():
            path = self.save(name, model(nodes, [("x", ["T", 3])], [("y", None)], turn + [
                constant("axis0", np.array(0)), constant("three", np.array([3]))]))
            artefact = self.path / f"{name}.heddle"
            done = heddle("compile", path, "--dynamic", "T=1..9@4,9", "-o", artefact, "--json")
            self.assertEqual(done.returncode, 0, name + done.stderr)
            self.assertLessEqual(json.loads(done.stdout)["programs"], 4, name)
            for n in (1, 2, 3, 4, 5, 8, 9):
                self.agrees(path, artefact,
                            np.random.default_rng(n).normal(size=(n, 3)).astype(np.float32))

    def test_what_changes_form_is_refused_or_listed(self):
        ends = [helper.make_node("Shape", ["x"], ["n"], name="size"),
                helper.make_node("Loop", ["n", "", "x"], ["y"], name="loop",
                                 body=helper.make_graph(
                                     [helper.make_node("Identity", ["c"], ["d"]),
                                      helper.make_node("Tanh", ["s"], ["t"])], "b",
                                     [helper.make_tensor_value_info("i", TensorProto.INT64, []),
                                      helper.make_tensor_value_info("c", TensorProto.BOOL, []),
                                      helper.make_tensor_value_info("s", TensorProto.FLOAT, None)],
                                     [helper.make_tensor_value_info("d", TensorProto.BOOL, []),
                                      helper.make_tensor_value_info("t", TensorProto.FLOAT, None)]))]
        path, artefact = self.save("loop", model(ends, [("x", ["T"])], [("y", None)])), self.path / "n"
        self.assert_fails(3, "cannot share a program", "compile", path, "--dynamic", "T=1..80@80",
                          "-o", artefact)
        done = heddle("compile", path, "--dynamic", "T=1..9@9", "-o", artefact)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("T=4 has a program of its own: Tanh 't'", done.stdout)
        for n in range(1, 10):
            self.agrees(path, artefact, np.random.default_rng(n).normal(size=n).astype(np.float32))

    def test_mistakes_are_named(self):
        path = self.save("attention", attention())
        self.assert_fails(2, "no symbolic dimension 'N', it has 'S'", "compile", path, "--dynamic",
                          "N=1..4")
        for text in ("S", "S=", "S=-1..4", "S=4..1", "S=1..", "S=1..9@20", "S=1..99999999"):
            self.assert_fails(2, "--dynamic: found", "compile", path, "--dynamic", text)
        artefact = self.path / "a.heddle"
        heddle("compile", path, "--dynamic", "S=1..4", "-o", artefact)
        data = bytearray(artefact.read_bytes())
        data[200] ^= 1  # in the manifest
        artefact.write_bytes(data)
        self.assert_fails(1, "artefact: damaged", "run", artefact)


if __name__ == "__main__":
    unittest.main()
