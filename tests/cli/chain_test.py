"""Artefacts of models in which values decide shapes: programs in a row, none compiled later."""
import json
import os
import pathlib
import sys
import unittest

import numpy as np
import onnx.numpy_helper
import onnxruntime
from onnx import TensorProto, helper

from command import HEDDLE, CommandTest, heddle

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python"))
FLOAT, INT, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
node = helper.make_node


def constant(name, value, dtype=None):
    return onnx.numpy_helper.from_array(np.asarray(value, dtype), name)


def graph(nodes, inputs, outputs, initializers=()):
    """Outputs of any shape."""
    return helper.make_model(helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info(n, t, s) for n, t, s in inputs],
        [helper.make_tensor_value_info(n, t, None) for n, t in outputs], list(initializers)),
        opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def detector():
    """40 boxes of 3 classes; what suppression leaves goes on as rows (class, score, box)."""
    nodes = [node("NonMaxSuppression", ["boxes", "scores", "most", "overlap", "least"], ["chosen"],
                  name="nms"),
             node("Slice", ["chosen", "two", "three", "one"], ["which"]),
             node("Slice", ["chosen", "one", "two", "one"], ["class"]),
             node("Squeeze", ["which", "one"], ["index"]),
             node("Squeeze", ["boxes", "zero"], ["all"]),
             node("Gather", ["all", "index"], ["picked"], name="pick"),
             node("GatherND", ["scores", "chosen"], ["score"], name="score"),
             node("Unsqueeze", ["score", "one"], ["column"]),
             node("Cast", ["class"], ["kind"], to=FLOAT),
             node("Concat", ["kind", "column", "picked"], ["rows"], axis=1),
             node("Softmax", ["scores"], ["all_scores"], axis=1, name="soft")]
    return graph(nodes, [("boxes", FLOAT, [1, 40, 4]), ("scores", FLOAT, [1, 3, 40])],
                 [("rows", FLOAT), ("index", INT), ("all_scores", FLOAT)],
                 [constant("most", 6), constant("overlap", 0.4, np.float32),
                  constant("least", 0.6, np.float32)] +
                 [constant(n, [v]) for v, n in enumerate(("zero", "one", "two", "three"))])


def detections(seed, level):
    rng = np.random.default_rng(seed)
    corner = rng.uniform(0, 8, size=(1, 40, 2))
    boxes = np.concatenate([corner, corner + rng.uniform(1, 4, size=(1, 40, 2))], axis=2)
    return {"boxes": boxes.astype(np.float32),
            "scores": (level * rng.uniform(size=(1, 3, 40))).astype(np.float32)}


class Chains(CommandTest):
    def compiled(self, name, proto, *more):
        path, artefact = self.save(name, proto), self.path / f"{name}.heddle"
        done = heddle("compile", path, "-o", artefact, "--json", *more)
        self.assertEqual(done.returncode, 0, done.stderr)
        return path, artefact, json.loads(done.stdout)

    def agrees(self, path, artefact, inputs):
        wanted = onnxruntime.InferenceSession(
            path, providers=["CPUExecutionProvider"]).run(None, inputs)
        saved = self.path / "saved"
        saved.mkdir(exist_ok=True)
        done = heddle("run", artefact, *self.given(inputs), "--save", saved)
        self.assertEqual(done.returncode, 0, done.stderr)
        for k, value in enumerate(wanted):
            found = np.load(saved / f"output_{k}.npy")
            self.assertEqual(found.shape, value.shape)
            np.testing.assert_allclose(found, value, rtol=1e-4, atol=1e-5)
        return wanted

    def test_what_suppression_leaves_goes_on(self):
        path, artefact, report = self.compiled("detector", detector())
        self.assertEqual(report["links"], 2)
        self.assertLessEqual(report["programs"], 10)
        counts = set()
        for seed, level in enumerate((0.5, 0.603, 0.61, 0.65, 0.7, 0.8, 1, 1.5, 3)):
            rows = self.agrees(path, artefact, detections(seed, level))[0]
            counts.add(len(rows))
        self.assertIn(0, counts)
        self.assertGreater(len(counts), 5)
        shown = heddle("explain", artefact).stdout
        self.assertIn("chosen is extent 0 of", shown)
        self.assertIn("chosen=", shown)
        # Nothing is compiled when it runs: it does without the cache's folder, and in no time.
        os.environ["HEDDLE_CACHE_DIR"] = str(self.path / "none")
        self.agrees(path, artefact, detections(3, 1))
        self.assertFalse((self.path / "none" / "programs").exists())

    def test_python_opens_it(self):
        import heddle as package
        os.environ["HEDDLE"] = HEDDLE
        path, artefact, _ = self.compiled("detector", detector())
        session = package.InferenceSession(artefact)
        self.assertEqual(session.output_names, ["rows", "index", "all_scores"])
        inputs = detections(1, 1)
        wanted = onnxruntime.InferenceSession(
            path, providers=["CPUExecutionProvider"]).run(None, inputs)
        for found, value in zip(session.run(None, inputs), wanted):
            np.testing.assert_allclose(found, value, rtol=1e-4, atol=1e-5)

    def test_a_bound_makes_fewer_programs_and_is_checked(self):
        for name in ("nms", "chosen"):
            path, artefact, report = self.compiled("detector", detector(), "--dynamic",
                                                   f"{name}=0..5@5")
            self.assertLessEqual(report["programs"], 4)
            self.agrees(path, artefact, detections(1, 0.62))
            self.assert_fails(3, "the values computed decide chosen=", "run", artefact,
                              *self.given(detections(8, 3)))

    def test_rows_of_what_is_not_zero(self):
        """Weights, normalisation, a mean over the rows, and the best three of them at most."""
        rng = np.random.default_rng(2)
        nodes = [node("Greater", ["x", "least"], ["high"]),
                 node("NonZero", ["high"], ["where"], name="find"),
                 node("Transpose", ["where"], ["places"], perm=[1, 0]),
                 node("GatherND", ["x", "places"], ["values"]),
                 node("Unsqueeze", ["values", "one"], ["column"]),
                 node("MatMul", ["column", "w"], ["wide"]),
                 node("Softmax", ["wide"], ["soft"], axis=0, name="over_rows"),
                 node("ReduceMax", ["wide"], ["top"], keepdims=0),
                 node("Shape", ["values"], ["count"]),
                 node("Min", ["count", "three"], ["k"]),
                 node("TopK", ["values", "k"], ["best", "positions"], name="best"),
                 node("Size", ["values"], ["size"])]
        path, artefact, _ = self.compiled(
            "rows", graph(nodes, [("x", FLOAT, [4, 5])],
                          [("soft", FLOAT), ("best", FLOAT), ("positions", INT), ("size", INT)],
                          [constant("least", 0, np.float32), constant("one", [1]),
                           constant("three", [3]),
                           constant("w", rng.normal(size=(1, 4)), np.float32)]))
        for shift in (-9, -1.8, -1.2, -0.7, 0, 0.5, 9):
            x = (rng.normal(size=(4, 5)) + shift).astype(np.float32)
            self.agrees(path, artefact, {"x": x})

    def test_distinct_values_and_how_often(self):
        nodes = [node("Unique", ["x"], ["y", "first", "inverse", "counts"], name="distinct"),
                 node("Mul", ["y", "counts"], ["sums"]),
                 node("Gather", ["sums", "inverse"], ["back"])]
        path, artefact, report = self.compiled(
            "unique", graph(nodes, [("x", INT, [12])], [("sums", INT), ("back", INT)]))
        self.assertEqual(report["links"], 2)
        for high in (1, 2, 5, 100):
            self.agrees(path, artefact, {"x": np.random.default_rng(high).integers(0, high, 12)})

    def test_one_count_after_another(self):
        nodes = [node("Greater", ["x", "least"], ["high"]),
                 node("Compress", ["x", "high"], ["kept"], axis=0, name="keep"),
                 node("Less", ["kept", "most"], ["low"]),
                 node("Compress", ["kept", "low"], ["rest"], axis=0, name="again"),
                 node("Neg", ["rest"], ["y"]), node("Abs", ["kept"], ["z"])]
        path, artefact, report = self.compiled(
            "twice", graph(nodes, [("x", FLOAT, [9])], [("y", FLOAT), ("z", FLOAT)],
                           [constant("least", -0.5, np.float32),
                            constant("most", 0.5, np.float32)]), "--dynamic", "keep=1..9")
        self.assertEqual(report["links"], 3)
        for seed in range(6):
            self.agrees(path, artefact,
                        {"x": np.random.default_rng(seed).normal(size=9).astype(np.float32)})

    def test_counts_that_are_found_together(self):
        """Where one of them is 0, or 1, the rest of the model folds in another way."""
        rows = lambda k: [
            node("Slice", ["x", f"at{k}", f"at{k + 1}", "one"], [f"column{k}"]),
            node("Greater", [f"column{k}", "least"], [f"high{k}"]),
            node("Squeeze", [f"high{k}", "one"], [f"flags{k}"]),
            node("NonZero", [f"flags{k}"], [f"where{k}"], name=f"find{k}"),
            node("Squeeze", [f"where{k}", "zero"], [f"index{k}"]),
            node("Gather", ["x", f"index{k}"], [f"rows{k}"], name=f"pick{k}")]
        rng = np.random.default_rng(0)
        numbers = [constant("least", 0, np.float32), constant("zero", [0]), constant("one", [1]),
                   constant("at0", [0]), constant("at1", [1]), constant("at2", [2]),
                   constant("w", rng.normal(size=(5, 4)), np.float32),
                   constant("b", rng.normal(size=5), np.float32)]
        product = rows(0) + rows(1) + [node("Transpose", ["rows1"], ["turned"], perm=[1, 0]),
                                       node("MatMul", ["rows0", "turned"], ["y"], name="product")]
        linear = rows(0) + [node("Gemm", ["rows0", "w", "b"], ["y"], transB=1, name="linear"),
                            node("Round", ["x"], ["whole"]),
                            node("Unique", ["whole"], ["z"], name="distinct")]
        for name, nodes, results in (("product", product, "y"), ("linear", linear, "yz")):
            path, artefact, report = self.compiled(
                name, graph(nodes, [("x", FLOAT, [6, 4])], [(r, FLOAT) for r in results], numbers))
            self.assertEqual(report["links"], 2)
            self.assertLessEqual(report["programs"], 40)
            for high in ((0, 0), (0, 1), (1, 0), (0, 6), (6, 0), (1, 1), (2, 5), (6, 6)):
                x = -rng.uniform(1, 2, size=(6, 4)).astype(np.float32)
                for column, many in enumerate(high):
                    x[:many, column] *= -1
                wanted = self.agrees(path, artefact, {"x": rng.permutation(x)})
                self.assertEqual(wanted[0].shape, high if name == "product" else (high[0], 5))

    def test_filters_after_filters_that_may_leave_nothing(self):
        """Boxes over a threshold, of which suppression leaves some; the rest as it comes."""
        threshold = [node("Squeeze", ["scores", "one"], ["best"]),
                     node("Greater", ["best", "least"], ["high"]),
                     node("NonZero", ["high"], ["where"], name="find"),
                     node("Squeeze", ["where", "zero"], ["index"]),
                     node("Gather", ["boxes", "index"], ["kept"]),
                     node("Gather", ["scores", "index"], ["column"]),
                     node("Transpose", ["column"], ["row"], perm=[1, 0]),
                     node("Unsqueeze", ["row", "zero"], ["all_scores"]),
                     node("Unsqueeze", ["kept", "zero"], ["all_boxes"]),
                     node("NonMaxSuppression", ["all_boxes", "all_scores", "most", "overlap"],
                          ["chosen"], name="nms"),
                     node("Slice", ["chosen", "two", "three", "one"], ["which"]),
                     node("Squeeze", ["which", "one"], ["places"]),
                     node("Gather", ["kept", "places"], ["left"]),
                     node("Gather", ["index", "places"], ["rows"])]
        numbers = [constant("least", 0.5, np.float32), constant("most", 4),
                   constant("overlap", 0.5, np.float32)] + [
                       constant(n, [v]) for v, n in enumerate(("zero", "one", "two", "three"))]
        path, artefact, report = self.compiled("threshold", graph(
            threshold, [("boxes", FLOAT, [10, 4]), ("scores", FLOAT, [10, 1])],
            [("left", FLOAT), ("rows", INT), ("chosen", INT), ("where", INT)], numbers))
        self.assertEqual(report["links"], 3)
        rng = np.random.default_rng(4)
        found = set()
        for level in (0.3, 0.52, 0.6, 0.8, 1, 3):
            corner = rng.uniform(0, 8, size=(10, 2))
            boxes = np.concatenate([corner, corner + rng.uniform(2, 5, size=(10, 2))], axis=1)
            scores = level * rng.uniform(size=(10, 1))
            wanted = self.agrees(path, artefact, {"boxes": boxes.astype(np.float32),
                                                  "scores": scores.astype(np.float32)})
            found.add((wanted[3].shape[1], len(wanted[0])))
        self.assertIn((0, 0), found)
        self.assertGreater(len(found), 3)

    def test_what_is_known_in_some_cases_only(self):
        """Of no elements the sum is known, so is the number that decides the next shape."""
        nodes = [node("Greater", ["x", "low"], ["high"]),
                 node("Compress", ["x", "high"], ["kept"], axis=0, name="keep"),
                 node("Greater", ["kept", "more"], ["higher"]),
                 node("Cast", ["higher"], ["ones"], to=INT),
                 node("ReduceSum", ["ones"], ["many"], keepdims=1, name="count"),
                 node("Slice", ["kept", "zero", "many", "zero"], ["first"]),
                 node("Neg", ["first"], ["y"]), node("Exp", ["kept"], ["z"])]
        path, artefact, report = self.compiled("sum", graph(
            nodes, [("x", FLOAT, [8])], [("y", FLOAT), ("z", FLOAT), ("many", INT)],
            [constant("low", 0, np.float32), constant("more", 1, np.float32),
             constant("zero", [0])]), "--dynamic", "many=0..8")
        self.assertEqual(report["links"], 3)
        for shift in (-9, -1, 0, 1, 9):
            x = (np.random.default_rng(5).normal(size=8) + shift).astype(np.float32)
            self.agrees(path, artefact, {"x": x})

    def test_images_of_any_size_and_boxes_of_any_number(self):
        """Sizes of the inputs, and of what suppression leaves, from one artefact."""
        rng = np.random.default_rng(6)
        nodes = [node("Conv", ["image", "w"], ["maps"], name="head"),
                 node("Slice", ["maps", "zero", "four", "one"], ["corners"]),
                 node("Slice", ["maps", "four", "five", "one"], ["heat"]),
                 node("Reshape", ["corners", "rows_of_4"], ["flat"]),
                 node("Transpose", ["flat"], ["boxes"], perm=[0, 2, 1]),
                 node("Reshape", ["heat", "one_row"], ["scores"]),
                 node("NonMaxSuppression", ["boxes", "scores", "most", "overlap", "least"],
                      ["chosen"], name="nms"),
                 node("Slice", ["chosen", "two", "three", "one"], ["which"]),
                 node("Squeeze", ["which", "one"], ["index"]),
                 node("Squeeze", ["boxes", "zero"], ["all"]),
                 node("Gather", ["all", "index"], ["picked"], name="pick"),
                 node("Tanh", ["maps"], ["features"])]
        numbers = [constant("w", rng.normal(size=(5, 3, 1, 1)), np.float32),
                   constant("most", 5), constant("overlap", 0.4, np.float32),
                   constant("least", 1.5, np.float32), constant("rows_of_4", [1, 4, -1]),
                   constant("one_row", [1, 1, -1])] + [
                       constant(n, [v])
                       for v, n in enumerate(("zero", "one", "two", "three", "four", "five"))]
        proto = graph(nodes, [("image", FLOAT, [1, 3, "H", "W"])],
                      [("picked", FLOAT), ("index", INT), ("features", FLOAT)], numbers)
        path, artefact, report = self.compiled("sized", proto, "--dynamic", "H=2..8:2",
                                               "--dynamic", "W=3..9:3@9", "--dynamic",
                                               "nms=0..5@1,5")
        self.assertEqual(report["links"], 2)
        counts = set()
        for h in (2, 4, 6, 8):
            for w in (3, 6, 9):
                image = (0.2 * h * rng.normal(size=(1, 3, h, w))).astype(np.float32)
                counts.add(len(self.agrees(path, artefact, {"image": image})[0]))
        self.assertIn(0, counts)
        self.assertGreater(len(counts), 3)
        self.assert_fails(2, "no program for these sizes, found H=3; there is H=2..8:2", "run",
                          artefact, "--size", "H=3")
        self.assertIn("H is extent 2 of 'image'", heddle("explain", artefact).stdout)
        self.assert_fails(3, "which is verified in stages: give one size", "verify", path,
                          "--dynamic", "H=2", "--dynamic", "W=3")
        self.assert_fails(2, "for sizes of what it computes, all of these must be", "compile", path, "-o",
                          self.path / "none", "--dynamic", "H=2..4", "--dynamic", "nms=0..5")

    def test_numbers_that_are_computed(self):
        nodes = [node("Greater", ["x", "least"], ["high"]),
                 node("Cast", ["high"], ["ones"], to=INT),
                 node("ReduceSum", ["ones"], ["k"], keepdims=1, name="how_many"),
                 node("TopK", ["x", "k"], ["best", "positions"], name="best")]
        proto = graph(nodes, [("x", FLOAT, [10])], [("best", FLOAT), ("positions", INT)],
                      [constant("least", 0.3, np.float32)])
        path, artefact, report = self.compiled("k", proto)  # no more than there are elements
        self.assertEqual(report["links"], 2)
        _, bounded, _ = self.compiled("three", proto, "--dynamic", "k=0..3")
        self.assert_fails(3, "the values computed decide k=10", "run", bounded,
                          *self.given({"x": np.full(10, 5, np.float32)}))
        for shift in (-5, -1, 0, 0.5, 5):
            x = (np.random.default_rng(3).normal(size=10) + shift).astype(np.float32)
            self.agrees(path, artefact, {"x": x})

    def test_numbers_that_nothing_bounds(self):
        nodes = [node("ReduceMax", ["x"], ["top"], keepdims=0, name="top"),
                 node("Cast", ["top"], ["whole"], to=INT),
                 node("Unsqueeze", ["whole", "zero"], ["k"], name="how_many"),
                 node("TopK", ["x", "k"], ["best", "positions"], name="best")]
        proto = graph(nodes, [("x", FLOAT, [10])], [("best", FLOAT)], [constant("zero", [0])])
        path = self.save("free", proto)
        self.assert_fails(3, "decides shapes, and nothing says how large", "compile", path, "-o",
                          self.path / "none")
        path, artefact, _ = self.compiled("free", proto, "--dynamic", "how_many=0..10")
        for most in (0.5, 3.2, 10):
            x = np.linspace(0, most, 10).astype(np.float32)
            self.agrees(path, artefact, {"x": x})

    def test_branches_on_computed_conditions(self):
        body = lambda op, name: helper.make_graph(
            [node(op, ["y"], [name])], name, [], [helper.make_tensor_value_info(name, FLOAT, None)])
        nodes = [node("ReduceSum", ["x"], ["s"], keepdims=0), node("Exp", ["x"], ["y"]),
                 node("Greater", ["s", "zero"], ["c"]),
                 node("If", ["c"], ["z"], then_branch=body("Sqrt", "a"), name="choose",
                      else_branch=body("Neg", "b"))]
        path, artefact, _ = self.compiled(
            "if", graph(nodes, [("x", FLOAT, [3])], [("z", FLOAT)],
                        [constant("zero", 0, np.float32)]))
        for sign in (1, -1):
            self.agrees(path, artefact, {"x": np.full(3, sign, np.float32)})
        path, artefact, _ = self.compiled(
            "given", graph(nodes[1:2] + nodes[3:], [("x", FLOAT, [3]), ("c", BOOL, [])],
                           [("z", FLOAT)]))
        for condition in (True, False):
            self.agrees(path, artefact, {"x": np.ones(3, np.float32), "c": np.array(condition)})

    def test_what_cannot_be_is_named(self):
        find = [node("NonZero", ["x"], ["where"], name="find"), node("Neg", ["where"], ["y"])]
        path = self.save("large", graph(find, [("x", FLOAT, [50, 50])], [("y", INT)]))
        self.assert_fails(3, "'where' (NonZero 'find') may have up to 2500 positions, more than 1024",
                          "compile", path, "-o", self.path / "none")
        self.assert_fails(2, "'elsewhere' is no extent or number that the model computes; found "
                             "'where' (NonZero 'find')", "compile", path, "-o", self.path / "none",
                          "--dynamic", "elsewhere=0..3", "--dynamic", "find=0..5")
        text = [node("NonZero", ["x"], ["where"], name="find"), node("Cast", ["where"], ["s"], to=8),
                node("StringConcat", ["s", "s"], ["t"], name="join"), node("Cast", ["t"], ["y"], to=INT)]
        path = self.save("text", graph(text, [("x", FLOAT, [3])], [("y", INT)]))
        self.assert_fails(3, "works on the host", "compile", path, "-o", self.path / "none")
        several = [node("Cast", ["x"], ["shape"], to=INT), node("Expand", ["one", "shape"], ["y"])]
        path = self.save("several", graph(several, [("x", FLOAT, [3])], [("y", FLOAT)],
                                          [constant("one", [1], np.float32)]))
        self.assert_fails(3, "the numbers of 'shape' (Cast 'shape'), i64[3], decide shapes", "compile",
                          path, "-o", self.path / "none")
        _, artefact, _ = self.compiled("detector", detector(), "--dynamic", "nms=0..2")
        data = bytearray(artefact.read_bytes())
        data[300] ^= 1
        artefact.write_bytes(data)
        self.assert_fails(1, "artefact: damaged", "run", artefact)
        artefact.write_bytes(data[:5000])
        self.assert_fails(1, "artefact: truncated", "run", artefact)


if __name__ == "__main__":
    unittest.main()
