"""Tests of the Python package.  HEDDLE=build/bin/heddle build/venv/bin/python python/heddle_test.py"""

import unittest

import numpy as np
import onnx.backend.test
from onnx import TensorProto, helper

import heddle
import heddle.backend


def model(nodes, inputs, outputs):
    info = lambda v: helper.make_tensor_value_info(*v)
    graph = helper.make_graph(nodes, "g", [info(v) for v in inputs], [info(v) for v in outputs])
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
               "image_decoder_decode_.*|gradient_of_add_and_mul|castlike_FLOAT16_to_INT4)_cpu$")
globals().update(runner.test_cases)

if __name__ == "__main__":
    unittest.main()
