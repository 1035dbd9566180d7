"""Tests of materialise.py that need no large model.  build/venv/bin/python zoo/materialise_test.py"""

import pathlib
import tempfile
import unittest

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import materialise


class WeightTest(unittest.TestCase):
    def test_normal_is_seeded_and_scaled(self):
        spec = {"seed": 3, "normal": [1.0, 0.1]}
        values = materialise.make_weight(spec, (100, 100))
        self.assertEqual(values.dtype, np.float32)
        self.assertAlmostEqual(float(values.mean()), 1.0, delta=0.01)
        self.assertAlmostEqual(float(values.std()), 0.1, delta=0.01)
        np.testing.assert_array_equal(values, materialise.make_weight(spec, (100, 100)))
        self.assertFalse((values == materialise.make_weight({**spec, "seed": 4}, (100, 100))).any())

    def test_uniform_stays_in_range(self):
        values = materialise.make_weight({"seed": 3, "uniform": [0.5, 1.5]}, (1000,))
        self.assertGreaterEqual(values.min(), 0.5)
        self.assertLessEqual(values.max(), 1.5)
        self.assertGreater(values.std(), 0.2)

    def test_unknown_distribution_is_an_error(self):
        with self.assertRaisesRegex(ValueError, "no known distribution"):
            materialise.make_weight({"seed": 1, "cauchy": [0, 1]}, (2,))


class InputTest(unittest.TestCase):
    def make(self, **spec):
        info = helper.make_tensor_value_info("x", TensorProto.INT64, [1, 8])
        return materialise.make_input({"seed": 1, **spec}, info)

    def test_text_inputs(self):
        tokens = self.make(kind="tokens", below=50)
        self.assertEqual((tokens.dtype, tokens.shape), (np.int64, (1, 8)))
        self.assertTrue(((tokens >= 0) & (tokens < 50)).all())
        self.assertEqual(self.make(kind="mask", padding=2).tolist(), [[1, 1, 1, 1, 1, 1, 0, 0]])
        self.assertEqual(self.make(kind="segments", first=3).tolist(), [[0, 0, 0, 1, 1, 1, 1, 1]])

    def test_unknown_kind_is_an_error(self):
        with self.assertRaisesRegex(ValueError, "'x': unknown kind 'zebra'"):
            self.make(kind="zebra")


class ZooTest(unittest.TestCase):
    def test_every_graph_is_kilobytes_and_describes_all_that_is_empty(self):
        graphs = sorted(materialise.ZOO.glob("*/graph.onnx*"))
        self.assertGreaterEqual(len(graphs), 8)
        for path in graphs:
            with self.subTest(path.parent.name):
                self.assertLess(path.stat().st_size, 512 * 1024)
                model = materialise.load_graph(path.parent.name)
                weights = materialise.take_property(model, "heddle.weights")
                inputs = materialise.take_property(model, "heddle.inputs")
                self.assertEqual(set(inputs), {i.name for i in model.graph.input})
                for tensor in model.graph.initializer:
                    if tensor.name not in weights:
                        numpy_helper.to_array(tensor)  # raises when values are missing
                    else:
                        self.assertFalse(tensor.raw_data)
                seeds = [spec["seed"] for spec in weights.values()]
                self.assertEqual(len(seeds), len(set(seeds)))

    def test_mlp_agrees_with_numpy(self):
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder) / "mlp"
            materialise.bring_up_to_date("mlp", folder)
            made = (folder / "model.onnx").stat().st_mtime_ns
            materialise.bring_up_to_date("mlp", folder)
            self.assertEqual((folder / "model.onnx").stat().st_mtime_ns, made)
            read = lambda name: numpy_helper.to_array(
                onnx.load_tensor(folder / "test_data_set_0" / name))
            model = onnx.load(folder / "model.onnx")
            values = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
            x = read("input_0.pb")
            for node in model.graph.node:
                if node.op_type == "Gemm":
                    x = x @ values[node.input[1]].T + values[node.input[2]]
                else:
                    x = np.maximum(x, 0)
            np.testing.assert_allclose(read("output_0.pb"), x, rtol=1e-4, atol=1e-4)

    def test_degenerate_outputs_are_refused(self):
        with self.assertRaisesRegex(ValueError, "not finite"):
            materialise.check_sane("y", np.array([1.0, np.nan]))
        with self.assertRaisesRegex(ValueError, "nearly constant"):
            materialise.check_sane("y", np.full(10, 3.0))


if __name__ == "__main__":
    unittest.main()
