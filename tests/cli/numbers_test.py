"""Models whose shapes, branches or trip counts are computed while they run, against ONNX Runtime."""
import json
import unittest

import numpy as np
import onnx
import onnx.numpy_helper
import onnxruntime
from onnx import TensorProto, helper

from command import CommandTest, heddle

FLOAT, INT, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
node = helper.make_node


def constant(name, value, dtype=None):
    return onnx.numpy_helper.from_array(np.asarray(value, dtype), name)


def info(name, kind, shape=None):
    return helper.make_tensor_value_info(name, kind, shape)


def graph(nodes, inputs, outputs, initializers=(), name="g"):
    return helper.make_graph(nodes, name, inputs, outputs, list(initializers))


def proto(main):
    return helper.make_model(main, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def generation():
    """Appends argmax(w · last) to a list of tokens until it is 0, at most n times."""
    w = np.random.default_rng(5).normal(size=(7, 7)).astype(np.float32)
    body = graph(
        [node("Gather", ["s", "last"], ["token"], axis=0),
         node("Gather", ["w", "token"], ["row"], axis=0),
         node("ArgMax", ["row"], ["next"], axis=1, keepdims=0),
         node("Concat", ["s", "next"], ["t"], axis=0),
         node("Squeeze", ["next", "axis"], ["single"]),
         node("Cast", ["single"], ["on"], to=BOOL),
         node("ReduceMax", ["row"], ["score"], keepdims=0)],
        [info("i", INT, []), info("go", BOOL, []), info("s", INT, [None])],
        [info("on", BOOL, []), info("t", INT, [None]), info("score", FLOAT, [])])
    return proto(graph(
        [node("Loop", ["n", "yes", "tokens"], ["all", "scores"], body=body, name="generate"),
         node("ReduceSum", ["scores"], ["total"], keepdims=0)],
        [info("tokens", INT, [None]), info("n", INT, [])],
        [info("all", INT, [None]), info("total", FLOAT, [])],
        [constant("w", w), constant("last", [-1]), constant("axis", [0]), constant("yes", True)]))


def detection():
    """Boxes that suppression keeps, with their areas, the largest k of them; k is half of them."""
    return proto(graph(
        [node("NonMaxSuppression", ["boxes", "scores", "most", "overlap"], ["kept"], name="nms"),
         node("Gather", ["kept", "two"], ["which"], axis=1),
         node("Squeeze", ["boxes", "first"], ["all"]),
         node("Gather", ["all", "which"], ["corners"], axis=0),
         node("Split", ["corners"], ["low", "high"], axis=1, num_outputs=2),
         node("Sub", ["high", "low"], ["sides"]),
         node("ReduceProd", ["sides", "second"], ["areas"], keepdims=0),
         node("Shape", ["areas"], ["count"]),
         node("Div", ["count", "pair"], ["half"]),
         node("TopK", ["areas", "half"], ["largest", "where"], axis=0),
         node("Gather", ["corners", "where"], ["y"], axis=0)],
        [info("boxes", FLOAT, [1, 40, 4]), info("scores", FLOAT, [1, 1, 40])],
        [info("y", FLOAT, [None, 4]), info("largest", FLOAT, [None])],
        [constant("most", [40]), constant("overlap", [0.3], np.float32), constant("two", 2),
         constant("first", [0]), constant("second", [1]), constant("pair", [2])]))


def ragged():
    """Sums of x over each distinct id, and positions of what is above the mean."""
    return proto(graph(
        [node("Unique", ["ids"], ["names", "", "place", ""]),
         node("Shape", ["names"], ["n"]),
         node("ConstantOfShape", ["n"], ["zeros"],
              value=onnx.numpy_helper.from_array(np.zeros(1, np.float32))),
         node("ScatterElements", ["zeros", "place", "x"], ["sums"], reduction="add"),
         node("ReduceMean", ["x"], ["mean"], keepdims=0),
         node("Greater", ["x", "mean"], ["above"]),
         node("NonZero", ["above"], ["where"]),
         node("Compress", ["x", "above"], ["big"]),
         node("Neg", ["big"], ["small"])],
        [info("ids", INT, [9]), info("x", FLOAT, [9])],
        [info("sums", FLOAT, [None]), info("where", INT, [1, None]), info("small", FLOAT, [None])]))


def branches():
    """A window of x whose ends are computed, or x as a matrix."""
    window = graph([node("Slice", ["x", "from", "to"], ["a"])], [], [info("a", FLOAT, None)],
                   name="window")
    matrix = graph([node("Reshape", ["x", "shape"], ["b"])], [], [info("b", FLOAT, None)],
                   name="matrix")
    return proto(graph(
        [node("ArgMin", ["x"], ["from"], axis=0), node("ArgMax", ["x"], ["to"], axis=0),
         node("Less", ["from", "to"], ["ordered1"]),
         node("Squeeze", ["ordered1"], ["ordered"]),
         node("If", ["ordered"], ["y"], then_branch=window, else_branch=matrix, name="either"),
         node("Add", ["y", "y"], ["z"])],
        [info("x", FLOAT, [6])], [info("z", FLOAT, None)], [constant("shape", [2, 3])]))


class Numbers(CommandTest):
    def agrees(self, path, inputs):
        """Runs and verifies the model on the inputs, and compares outputs with ONNX Runtime's."""
        flags = []
        for name, value in inputs.items():
            file = self.path / f"{name}.npy"
            np.save(file, value)
            flags += ["--input", f"{name}={file}"]
        out = self.path / "out"
        out.mkdir(exist_ok=True)
        for old in out.iterdir():
            old.unlink()
        done = heddle("run", path, "--save", out, *flags)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        for i, want in enumerate(session.run(None, inputs)):
            found = np.load(out / f"output_{i}.npy")
            self.assertEqual(found.shape, want.shape)
            np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-5)
        done = heddle("verify", path, *flags)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_generation(self):
        path = self.save("generation", generation())
        for tokens, n in (([1, 2], 6), ([3], 2), ([4, 5, 6], 0)):
            self.agrees(path, {"tokens": np.array(tokens), "n": np.array(n)})

    def test_detection(self):
        path = self.save("detection", detection())
        for seed in range(3):
            rng = np.random.default_rng(seed)
            corner = rng.random((40, 2), np.float32)
            boxes = np.concatenate([corner, corner + rng.random((40, 2), np.float32)], 1)
            self.agrees(path, {"boxes": boxes[None], "scores": rng.random((1, 1, 40), np.float32)})

    def test_ragged(self):
        path = self.save("ragged", ragged())
        for seed in range(3):
            rng = np.random.default_rng(seed)
            self.agrees(path, {"ids": rng.integers(0, 2 + 3 * seed, 9),
                               "x": rng.random(9, np.float32)})

    def test_branches(self):
        path = self.save("branches", branches())
        for x in ([0, 1, 2, 3, 4, 5], [5, 1, 2, 0, 4, 3], [3, 0, 1, 5, 4, 2]):
            self.agrees(path, {"x": np.array(x, np.float32)})

    def test_what_it_says(self):
        path = self.save("detection", detection())
        reply = json.loads(heddle("check", path, "--json").stdout)
        self.assertTrue(reply["ok"])
        self.assertIn("corners", reply["after_the_host"])
        done = heddle("explain", path)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("later, compiled for what these make", done.stdout)
        path = self.save("branches", branches())
        self.assertIn("numbers decide shapes or branches: 'ordered'",
                      heddle("explain", path).stdout)
        self.assert_fails(3, "run, verify and explain take it in stages", "compile", path, "-o",
                          self.path / "o")
        done = heddle("run", path)  # random inputs
        self.assertIn("random numbers of seed 0", done.stdout)

    def test_check_looks_behind_stages(self):
        body = graph([node("Add", ["s", "s"], ["t"]), node("Identity", ["go"], ["on"]),
                      node("Odd", ["t"], ["u"], name="inner")],
                     [info("i", INT, []), info("go", BOOL, []), info("s", FLOAT, [2])],
                     [info("on", BOOL, []), info("u", FLOAT, [2])])
        path = self.save("odd", proto(graph(
            [node("NonZero", ["x"], ["where"]), node("Strange", ["where"], ["y"], name="behind"),
             node("Loop", ["n", "", "x"], ["z"], body=body)],
            [info("x", FLOAT, [2]), info("n", INT, [])],
            [info("y", FLOAT, None), info("z", FLOAT, None)])))
        reply = json.loads(heddle("check", path, "--json").stdout)
        self.assertEqual(sorted(p["node"] for p in reply["problems"]), ["behind", "inner"])

    def test_sequences_are_compared(self):
        folder = self.path / "case"
        data = folder / "test_data_set_0"
        data.mkdir(parents=True)
        main = graph([node("SplitToSequence", ["x"], ["s"], axis=0)], [info("x", FLOAT, [2])],
                     [helper.make_tensor_sequence_value_info("s", FLOAT, None)])
        (folder / "model.onnx").write_bytes(proto(main).SerializeToString())
        (data / "input_0.pb").write_bytes(constant("x", [1, 2], np.float32).SerializeToString())
        for last, code in ((2, 0), (3, 4)):
            items = [np.array([1], np.float32), np.array([last], np.float32)]
            (data / "output_0.pb").write_bytes(
                onnx.numpy_helper.from_list(items).SerializeToString())
            done = heddle("run", folder)
            self.assertEqual(done.returncode, code, done.stdout + done.stderr)

    def test_an_error_while_running(self):
        path = self.save("shape", proto(graph(
            [node("Reshape", ["x", "shape"], ["y"], name="turn")],
            [info("x", FLOAT, [6]), info("shape", INT, [2])], [info("y", FLOAT, None)])))
        np.save(self.path / "shape.npy", np.array([4, 2]))
        self.assert_fails(1, "Reshape 'turn'", "run", path, "--input",
                          f"shape={self.path / 'shape.npy'}")


if __name__ == "__main__":
    unittest.main()
