"""Models with operators on strings, which run in stages, under every verb."""
import json
import unittest

import numpy as np
import onnx
import onnx.numpy_helper
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from command import CommandTest, heddle


class Staged(CommandTest):
    def setUp(self):
        super().setUp()
        text, real = TensorProto.STRING, TensorProto.FLOAT
        nodes = [helper.make_node("MatMul", ["x", "w"], ["m"], name="product"),
                 helper.make_node("Softmax", ["m"], ["p"], name="soft"),
                 helper.make_node("StringConcat", ["s", "t"], ["c"], name="join"),
                 helper.make_node("StringNormalizer", ["c"], ["n"], name="upper",
                                  case_change_action="UPPER")]
        graph = helper.make_graph(
            nodes, "g", [helper.make_tensor_value_info(*port) for port in
                         (("s", text, [2]), ("t", text, [2]), ("x", real, [3, 4]))],
            [helper.make_tensor_value_info(*port) for port in
             (("p", real, [3, 5]), ("n", text, [2]))],
            [onnx.numpy_helper.from_array(np.eye(4, 5, dtype=np.float32), "w")])
        folder = self.path / "case"
        data = folder / "test_data_set_0"
        data.mkdir(parents=True)
        proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])
        (folder / "model.onnx").write_bytes(proto.SerializeToString())
        x = np.arange(12, dtype=np.float32).reshape(3, 4) / 5
        e = np.exp(x @ np.eye(4, 5, dtype=np.float32))
        values = {"input_0": np.array(["a", "b"], object), "input_1": np.array(["c", "d"], object),
                  "input_2": x, "output_0": (e / e.sum(1, keepdims=True)).astype(np.float32),
                  "output_1": np.array(["AC", "BD"], object)}
        for name, value in values.items():
            (data / f"{name}.pb").write_bytes(
                onnx.numpy_helper.from_array(value).SerializeToString())
        self.model, self.data = folder, data

    def test_run(self):
        done = heddle("run", self.model)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn('"AC", "BD"', done.stdout)

    def test_check_names_host_operators(self):
        done = heddle("check", self.model)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("StringConcat 'join'", done.stdout)
        reply = json.loads(heddle("check", self.model, "--json").stdout)
        self.assertEqual((reply["ok"], reply["host_operators"], reply["after_the_host"]),
                         (True, ["StringConcat 'join'"], ["upper"]))

    def test_check_finds_arguments_of_other_types(self):
        text, real = TensorProto.STRING, TensorProto.FLOAT
        nodes = [helper.make_node("StringConcat", ["s", "x"], ["a"], name="join"),
                 helper.make_node("ImageDecoder", ["x"], ["b"], name="decode"),
                 helper.make_node("ImageDecoder", ["s"], ["c"], name="text")]
        graph = helper.make_graph(
            nodes, "g", [helper.make_tensor_value_info("s", text, [2]),
                         helper.make_tensor_value_info("x", real, [2])],
            [helper.make_tensor_value_info("a", text, [2]),
             helper.make_tensor_value_info("b", TensorProto.UINT8, [None] * 3),
             helper.make_tensor_value_info("c", TensorProto.UINT8, [None] * 3)])
        path = self.save("types", helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", 20)]))
        done = heddle("check", path)
        self.assertEqual(done.returncode, 3, done.stdout + done.stderr)
        for part in ("StringConcat 'join': input 1 is f32[2], want strings",
                     "ImageDecoder 'decode': input 0 is f32[2], want the bytes of a file, u8[n]",
                     "ImageDecoder 'text': input 0 is string, want the bytes"):
            self.assertIn(part, done.stdout)

    def test_explain(self):
        for node, part in (("join", "host: StringConcat 'join'"), ("upper", "when this stage has run"),
                           ("soft", "covers Softmax 'soft'")):
            done = heddle("explain", self.model, "--node", node)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn(part, done.stdout)
        self.assert_fails(2, "'nobody'", "explain", self.model, "--node", "nobody")
        page = self.path / "page.html"
        self.assert_fails(3, "--html", "explain", self.model, "--html", page)
        self.assertFalse(page.exists())

    def test_samples_by_the_size_of_regions(self):
        graph = helper.make_graph(
            [helper.make_node("RoiAlign", ["x", "r", "b"], ["a"], name="regions", output_height=3,
                              output_width=2, spatial_scale=0.5),
             helper.make_node("Relu", ["a"], ["y"], name="after")], "g",
            [helper.make_tensor_value_info(*port) for port in
             (("x", TensorProto.FLOAT, [2, 3, 11, 13]), ("r", TensorProto.FLOAT, [4, 4]),
              ("b", TensorProto.INT64, [4]))],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 3, 3, 2])])
        proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 16)])
        random = np.random.default_rng(3)
        corner = random.uniform(0, 12, (4, 2))
        feeds = {"x": random.standard_normal((2, 3, 11, 13)).astype(np.float32),
                 "r": np.concatenate([corner, corner + random.uniform(1, 14, (4, 2))],
                                     1).astype(np.float32),
                 "b": np.array([0, 1, 1, 0])}
        path, data = self.save("model", proto), self.path / "test_data_set_0"
        data.mkdir(exist_ok=True)
        for k, (name, value) in enumerate(feeds.items()):
            (data / f"input_{k}.pb").write_bytes(
                onnx.numpy_helper.from_array(value, name).SerializeToString())
        want = ReferenceEvaluator(proto).run(None, feeds)[0]
        for factor, code in ((1, 0), (1.01, 4)):
            (data / "output_0.pb").write_bytes(onnx.numpy_helper.from_array(
                (want * factor).astype(np.float32), "y").SerializeToString())
            for verb in ("run", "verify"):
                done = heddle(verb, self.path)
                self.assertEqual(done.returncode, code, f"{verb}: {done.stdout}{done.stderr}")
        self.assertIn("host: RoiAlign 'regions'", heddle("explain", path).stdout)
        self.assert_fails(3, "takes the number of samples from the regions' sizes", "compile", path,
                          "-o", self.path / "o")

    def test_verify(self):
        done = heddle("verify", self.model)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("StringConcat 'join', StringNormalizer 'upper'", done.stdout)
        reply = json.loads(heddle("verify", self.model, "--json").stdout)
        self.assertGreater(len(reply["kernels"]), 0)
        self.assertEqual((reply["wrong"], reply["stages"]), (0, 1))
        (self.data / "output_1.pb").write_bytes(onnx.numpy_helper.from_array(
            np.array(["AC", "BE"], object)).SerializeToString())
        self.assert_fails(4, "differ from the expected", "verify", self.model)

    def test_a_training_step_is_one_program(self):
        for verb in ("explain", "verify"):
            done = heddle(verb, self.model, "--train", "cross_entropy")
            self.assertEqual(done.returncode, 3, done.stdout)
            self.assertIn("--train: ", done.stderr)
            self.assertIn("runs in stages", done.stderr)

    def test_what_needs_one_program(self):
        for verb in (("compile", self.model, "-o", self.path / "o"), ("bench", self.model),
                     ("profile", self.model)):
            self.assert_fails(3, "StringConcat 'join'", *verb)

    def test_unused_string(self):
        nodes = [helper.make_node("Relu", ["x"], ["y"])]
        graph = helper.make_graph(
            nodes, "g", [helper.make_tensor_value_info("s", TensorProto.STRING, [2]),
                         helper.make_tensor_value_info("x", TensorProto.FLOAT, [3])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, [3])])
        path = self.save("unused", helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", 18)]))
        for verb in ("run", "verify", "check", "explain", "profile"):
            done = heddle(verb, path)
            self.assertEqual(done.returncode, 0, f"{verb}: {done.stdout}{done.stderr}")


if __name__ == "__main__":
    unittest.main()
