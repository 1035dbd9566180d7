"""Tests of the Python package.  HEDDLE=build/bin/heddle build/venv/bin/python python/heddle_test.py"""

import os
import pathlib
import subprocess
import tempfile
import unittest

import numpy as np
import onnx.backend.test
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

import heddle
import heddle.backend


def model(nodes, inputs, outputs, constants=()):
    info = lambda v: helper.make_tensor_value_info(*v)
    names = {c.name for c in constants}
    graph = helper.make_graph(nodes, "g", [info(v) for v in inputs if v[0] not in names],
                              [info(v) for v in outputs], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


class SessionTest(unittest.TestCase):
    def test_any_extent_of_a_symbolic_dimension(self):
        session = heddle.InferenceSession(model(
            [helper.make_node("Add", ["x", "x"], ["y"])],
            [("x", TensorProto.FLOAT, ["n", 2])], [("y", TensorProto.FLOAT, ["n", 2])]))
        for n in (1, 5):
            x = np.random.default_rng(n).normal(size=(n, 2)).astype(np.float32)
            np.testing.assert_array_equal(session.run(["y"], {"x": x})[0], x + x)

    def test_an_input_that_decides_the_shape(self):
        session = heddle.InferenceSession(model(
            [helper.make_node("Reshape", ["x", "shape"], ["y"])],
            [("x", TensorProto.FLOAT, [6]), ("shape", TensorProto.INT64, [2])],
            [("y", TensorProto.FLOAT, [None, None])]))
        x = np.arange(6, dtype=np.float32)
        y, = session.run(None, {"x": x, "shape": np.array([3, -1])})
        np.testing.assert_array_equal(y, x.reshape(3, 2))

    def test_strings(self):
        session = heddle.InferenceSession(model(
            [helper.make_node("StringConcat", ["x", "y"], ["z"])],
            [("x", TensorProto.STRING, [2]), ("y", TensorProto.STRING, [1])],
            [("z", TensorProto.STRING, [2])]))
        z, = session.run(None, {"x": np.array(["a", "b"]), "y": np.array(["-ä"])})
        self.assertEqual([v.decode() if isinstance(v, bytes) else v for v in z], ["a-ä", "b-ä"])

    def test_sequences_and_optional_values(self):
        sequence = helper.make_sequence_type_proto(
            helper.make_tensor_type_proto(TensorProto.FLOAT, None))
        graph = helper.make_graph(
            [helper.make_node("SequenceInsert", ["s", "x"], ["t"])], "g",
            [helper.make_value_info("s", sequence),
             helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])],
            [helper.make_value_info("t", sequence)])
        session = heddle.InferenceSession(helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9))
        x, first = np.arange(2, dtype=np.float32), np.ones((3, 1), np.float32)
        for given in ([], [first]):
            found, = session.run(None, {"s": given, "x": x})
            self.assertEqual(len(found), len(given) + 1)
            for a, b in zip(found, [*given, x]):
                np.testing.assert_array_equal(a, b)

    def test_maps_of_a_classifier(self):
        for labels in ({"classlabels_int64s": [3, 5]}, {"classlabels_strings": ["no", "yes"]}):
            made = model([helper.make_node("Softmax", ["x"], ["s"]),
                          helper.make_node("ZipMap", ["s"], ["y"], domain="ai.onnx.ml", **labels)],
                         [("x", TensorProto.FLOAT, ["n", 2])], [("y", TensorProto.FLOAT, None)])
            key = TensorProto.INT64 if "classlabels_int64s" in labels else TensorProto.STRING
            made.graph.output[0].type.CopyFrom(helper.make_sequence_type_proto(
                helper.make_map_type_proto(key, helper.make_tensor_type_proto(
                    TensorProto.FLOAT, []))))
            made.opset_import.append(helper.make_opsetid("ai.onnx.ml", 3))
            x = np.random.default_rng(1).normal(size=(4, 2)).astype(np.float32)
            wanted, = onnxruntime.InferenceSession(
                made.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, {"x": x})
            found, = heddle.InferenceSession(made).run(None, {"x": x})
            self.assertEqual(len(found), 4)
            for f, w in zip(found, wanted):
                self.assertEqual(list(f), list(w))
                np.testing.assert_allclose(list(f.values()), list(w.values()), rtol=1e-5)

    def test_an_artefact_of_several_sizes(self):
        with tempfile.TemporaryDirectory() as folder:
            path, artefact = pathlib.Path(folder) / "m.onnx", pathlib.Path(folder) / "m.heddle"
            onnx.save(model([helper.make_node("ReduceSum", ["x", "k"], ["y"], keepdims=0),
                             helper.make_node("Add", ["x", "x"], ["z"])],
                            [("x", TensorProto.FLOAT, ["n", 3]), ("k", TensorProto.INT64, [1])],
                            [("y", TensorProto.FLOAT, [None]), ("z", TensorProto.FLOAT, ["n", 3])],
                            [numpy_helper.from_array(np.array([0]), "k")]), path)
            subprocess.run([os.environ["HEDDLE"], "compile", path, "--dynamic", "n=1..9@4,9", "-o",
                            artefact], check=True, capture_output=True)
            session = heddle.InferenceSession(artefact)
            self.assertEqual((session.input_names, session.output_names), (["x"], ["y", "z"]))
            for n in (1, 3, 4, 7, 9):
                x = np.random.default_rng(n).normal(size=(n, 3)).astype(np.float32)
                y, z = session.run(None, {"x": x})
                np.testing.assert_allclose(y, x.sum(axis=0), rtol=1e-5, atol=1e-6)
                np.testing.assert_array_equal(z, x + x)
            with self.assertRaisesRegex(heddle.HeddleError, "no program for these sizes"):
                session.run(None, {"x": np.zeros((10, 3), np.float32)})

    def test_what_is_not_supported_says_so(self):
        session = heddle.InferenceSession(model(
            [helper.make_node("Invert", ["x"], ["y"], domain="ai.example")],
            [("x", TensorProto.FLOAT, [9])], [("y", TensorProto.FLOAT, [9])]))
        with self.assertRaisesRegex(heddle.HeddleError, "Invert") as caught:
            session.run(None, {"x": np.zeros(9, np.float32)})
        self.assertEqual(caught.exception.code, heddle.backend.UNSUPPORTED)


# onnx's own runner on a few cases; python/backend_test.py runs them all.
runner = onnx.backend.test.BackendTest(heddle.backend, __name__)
runner.include("^test_(relu|matmul_2d|reshape_negative_dim|string_split_basic|topk|"
               "sequence_insert_at_back|optional_get_element_sequence|"
               "image_decoder_decode_.*|gradient_of_add_and_mul|castlike_FLOAT16_to_INT4)_cpu$")
globals().update(runner.test_cases)

if __name__ == "__main__":
    unittest.main()
