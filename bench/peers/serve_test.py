"""Drives serve.py as `heddle bench` does.  build/venv/bin/python bench/peers/serve_test.py"""

import json
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest

import numpy as np
import onnx
from onnx import TensorProto, helper

import serve

SERVE = pathlib.Path(__file__).with_name("serve.py")


def affine_model():
    """y = x @ w + 1 with a [256, 256] w: enough work for ONNX Runtime to wake its workers."""
    w = helper.make_tensor("w", TensorProto.FLOAT, [256, 256], np.eye(256).ravel() * 2)
    one = helper.make_tensor("one", TensorProto.FLOAT, [], [1.0])
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["xw"]), helper.make_node("Add", ["xw", "one"], ["y"])],
        "affine", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [256, 256])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [256, 256])], [w, one])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


class ServeTest(unittest.TestCase):
    def setUp(self):
        self._folder = tempfile.TemporaryDirectory()
        self.addCleanup(self._folder.cleanup)
        folder = pathlib.Path(self._folder.name)
        self.model, self.x = str(folder / "m.onnx"), str(folder / "x.npy")
        self.values = np.random.default_rng(0).standard_normal((256, 256), dtype=np.float32)
        onnx.save(affine_model(), self.model)
        np.save(self.x, self.values)
        self.worker = subprocess.Popen([sys.executable, str(SERVE), "ort", "2"], text=True, bufsize=1,
                                       stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.addCleanup(self.stop)

    def stop(self):
        if self.worker.poll() is None:
            self.worker.kill()
        self.worker.wait()
        self.worker.stdin.close()
        self.worker.stdout.close()

    def ask(self, request):
        line = request if isinstance(request, str) else json.dumps(request)
        self.worker.stdin.write(line + "\n")
        return json.loads(self.worker.stdout.readline())

    def load(self, **changes):
        return self.ask({"cmd": "load", "model": self.model, "inputs": {"x": self.x},
                         **changes})

    def test_loads_runs_and_quits(self):
        reply = self.load()
        self.assertTrue(reply.get("ok"), reply)
        self.assertRegex(reply["version"], r"^\d+\.\d+")
        np.testing.assert_allclose(np.load(reply["outputs"]["y"]), self.values * 2 + 1, rtol=1e-6)
        times = self.ask({"cmd": "run", "iters": 5, "warmup": 2})["ms"]
        self.assertEqual(len(times), 5)
        self.assertTrue(all(0 < t < 1000 for t in times), times)
        self.assertGreater(self.ask({"cmd": "stats"})["peak_mb"], 1)
        self.worker.stdin.write('{"cmd":"quit"}\n')
        self.assertEqual(self.worker.wait(timeout=20), 0)
        self.assertFalse(pathlib.Path(reply["outputs"]["y"]).exists())

    def test_is_idle_between_runs(self):
        self.assertTrue(self.load().get("ok"))
        self.ask({"cmd": "run", "iters": 50})
        before = self.ask({"cmd": "stats"})["cpu_s"]
        time.sleep(0.3)
        self.assertLess(self.ask({"cmd": "stats"})["cpu_s"] - before, 0.03)

    def test_errors_are_replies_and_do_not_end_the_worker(self):
        self.assertIn("no model", self.ask({"cmd": "run", "iters": 1})["error"])
        self.assertIn("unknown cmd", self.ask({"cmd": "dance"})["error"])
        self.assertIn("unknown cmd", self.ask("[1]")["error"])
        self.assertIn("JSONDecodeError", self.ask("{nonsense")["error"])
        self.assertIn("'model' is None", self.load(model=None)["error"])
        self.assertIn("missing.onnx", self.load(model="missing.onnx")["error"])
        self.assertIn("cannot compute in bf16, only in f32", self.load(precision="bf16")["error"])
        self.assertIn("want ['x']", self.load(inputs={})["error"])
        self.assertTrue(self.load().get("ok"))
        self.assertIn("iters is -1", self.ask({"cmd": "run", "iters": -1})["error"])

    def test_ends_when_the_caller_does(self):
        self.assertTrue(self.load().get("ok"))
        self.worker.stdin.close()
        self.assertEqual(self.worker.wait(timeout=20), 0)

    def test_threads_are_obeyed(self):
        self.assertTrue(self.load().get("ok"))
        reply = self.ask({"cmd": "run", "iters": 20})
        self.assertTrue(0 < reply["cores"] < 2.2, reply)

    def test_usage(self):
        for arguments, wanted in ((["nobody"], "choose from 'ort'"), (["ort", "0"], "want 1..1024")):
            done = subprocess.run([sys.executable, str(SERVE), *arguments], capture_output=True,
                                  text=True)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(wanted, done.stderr)


class FirstLineTest(unittest.TestCase):
    def test_the_line_that_names_the_error(self):
        self.assertEqual(serve.first_line("Tool failed\n a.mlir:1: error: too big\nmore"),
                         "a.mlir:1: error: too big")
        self.assertEqual(serve.first_line("\n one\ntwo"), "one")
        self.assertEqual(serve.first_line(""), "")


if __name__ == "__main__":
    unittest.main()
