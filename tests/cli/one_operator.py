"""Models of one operator, against ONNX Runtime or numbers from elsewhere."""
import os
import pathlib
import sys
import tempfile
import unittest
import warnings

import numpy as np
import onnx.numpy_helper
import onnxruntime
from onnx import helper

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python"))
import heddle  # noqa: E402


def model_of(op, inputs, attributes, results, domain, opset, constants):
    """`inputs` by position, None where one is left out; those in `constants` are initializers."""
    given = {f"x{i}": v for i, v in enumerate(inputs) if v is not None}
    fixed = {f"x{i}" for i in constants}
    node = helper.make_node(op, [f"x{i}" if v is not None else "" for i, v in enumerate(inputs)],
                            [f"y{i}" for i in range(results)], domain=domain, **attributes)
    graph = helper.make_graph(
        [node], "g",
        [helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape)
         for name, v in given.items() if name not in fixed],
        [onnx.ValueInfoProto(name=f"y{i}") for i in range(results)],
        [onnx.numpy_helper.from_array(v, name) for name, v in given.items() if name in fixed])
    opsets = [helper.make_opsetid("", opset)] + ([helper.make_opsetid(domain, 1)] if domain else [])
    return (helper.make_model(graph, opset_imports=opsets, ir_version=10),
            {name: v for name, v in given.items() if name not in fixed})


def of_onnx_runtime(model, feeds):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(model.SerializeToString(), options,
                                        providers=["CPUExecutionProvider"]).run(None, feeds)


class OperatorTest(unittest.TestCase):
    def setUp(self):
        warnings.simplefilter("ignore", ResourceWarning)
        self.folder = tempfile.TemporaryDirectory()
        os.environ["HEDDLE_CACHE_DIR"] = self.folder.name
        self.random = np.random.default_rng(7)

    def tearDown(self):
        self.folder.cleanup()

    def normal(self, *shape):
        return self.random.normal(size=shape).astype(np.float32)

    def uniform(self, low, high, *shape):
        return self.random.uniform(low, high, shape).astype(np.float32)

    def numbers(self, dtype, *shape, low=None, high=None):
        info = np.iinfo(dtype)
        return self.random.integers(info.min if low is None else low,
                                    info.max + 1 if high is None else high, shape).astype(dtype)

    def agrees(self, op, inputs, results=1, constants=(), want=None, close=2e-5,
               domain="com.microsoft", opset=21, compared=None, **attributes):
        """Heddle's results are `want`'s, or ONNX Runtime's where nothing is wanted: integers
        exactly, others to `close` of the largest number. `compared`: only these results."""
        model, feeds = model_of(op, inputs, attributes, results, domain, opset, constants)
        want = of_onnx_runtime(model, feeds) if want is None else want
        for port, value in zip(model.graph.output, want):
            kind = helper.np_dtype_to_tensor_dtype(value.dtype)
            port.CopyFrom(helper.make_tensor_value_info(port.name, kind, value.shape))
        found = heddle.InferenceSession(model).run(None, feeds)
        for i in range(results) if compared is None else compared:
            about = f"{op} {attributes}, result {i}"
            self.assertEqual(found[i].shape, want[i].shape, about)
            self.assertEqual(found[i].dtype, want[i].dtype, about)
            if want[i].dtype.kind != "f":
                np.testing.assert_array_equal(found[i], want[i], about)
                continue
            wanted = want[i].astype(np.float64)
            scale = max(1e-30, np.max(np.abs(wanted), initial=0, where=np.isfinite(wanted)))
            np.testing.assert_allclose(found[i], wanted, rtol=0, atol=close * scale, err_msg=about)
        return found
