"""heddle train --distributed nccl: two processes with a GPU each, on halves of each batch, give the weights of one
on all of it. Driver and NCCL are the stand-in, whose processes meet in a file."""
import os
import pathlib
import subprocess
import sys
import unittest

import numpy as np
import onnx
import onnx.numpy_helper
from onnx import helper

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cli"))
from command import HEDDLE, CommandTest, model  # noqa: E402
from ranks_test import MPIRUN  # noqa: E402

FAKE = os.environ["FAKE_CUDA"]


class NcclTest(CommandTest):
    def setUp(self):
        super().setUp()
        random = np.random.default_rng(5)

        def weight(name, *shape):
            return onnx.numpy_helper.from_array((random.normal(size=shape) / shape[0] ** 0.5).astype(np.float32), name)

        def network(batch):
            return model([helper.make_node("MatMul", ["x", "w1"], ["m"]), helper.make_node("Add", ["m", "b"], ["a"]),
                          helper.make_node("Relu", ["a"], ["h"]), helper.make_node("MatMul", ["h", "w2"], ["y"])],
                         [("x", [batch, 7])], [("y", [batch, 3])], weights)
        weights = [weight("w1", 7, 65), weight("b", 65), weight("w2", 65, 3)]
        self.start = {w.name: onnx.numpy_helper.to_array(w) for w in weights}
        self.whole, self.half = (self.save(f"batch{n}", network(n)) for n in (16, 8))
        x = random.normal(size=(96, 7)).astype(np.float32)
        np.save(self.path / "x.npy", x)
        np.save(self.path / "y.npy", x[:, :3].argmax(1))

    def arguments(self, network, *more):
        return [HEDDLE, "train", network, "--data", f"x={self.path}/x.npy", "--target", f"{self.path}/y.npy",
                "--threads", "1", "--lr", "0.05", "--optimizer", "momentum", "--mode", "kernels",
                "-o", self.path / "out.onnx", *more]

    def run_it(self, command, settings="devices=2"):
        return subprocess.run([str(a) for a in command], capture_output=True, text=True, timeout=280,
                              env={**os.environ, "OMPI_MCA_rmaps_base_oversubscribe": "1", "HEDDLE_CUDA_DRIVER": FAKE,
                                   "HEDDLE_NVRTC": FAKE, "HEDDLE_CUBLASLT": FAKE,
                                   "HEDDLE_FAKE_CUDA": f"cache={self.path}/emulated,{settings}"})

    def two(self, *more, settings="devices=2", nccl=FAKE, device="cuda"):
        return self.run_it([*MPIRUN, "-np", "2", *self.arguments(
            self.half, "--device", device, "--distributed", "nccl", "--nccl", nccl, *more)], settings)

    def weights(self, done):
        self.assertEqual(done.returncode, 0, done.stderr)
        proto = onnx.load(self.path / "out.onnx")
        return {t.name: onnx.numpy_helper.to_array(t) for t in proto.graph.initializer}

    def test_two_gpus_are_one_with_twice_the_batch(self):
        want = self.weights(self.run_it(self.arguments(self.whole, "--epochs", "2")))
        # The sums as soon as they may be, and not before they are waited for.
        for sums in ("early", "late"):
            done = self.two("--epochs", "2", settings=f"devices=2,sums={sums}")
            found = self.weights(done)
            self.assertIn("sums over 2 processes", done.stdout)
            for name, value in want.items():
                self.assertGreater(np.abs(value - self.start[name]).max(), 1e-2)
                np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-6, err_msg=f"{name}, {sums}")

    def test_what_is_not_there(self):
        for more, code, message in (
                ({"settings": "devices=1"}, 6, "GPU 1: invalid device ordinal"),
                ({"nccl": "/nowhere/libnccl.so.2"}, 6, "NCCL /nowhere/libnccl.so.2: "),
                ({"nccl": "libm.so.6"}, 6, "NCCL libm.so.6: want NCCL 2"),
                ({"device": "cuda:0"}, 1, "NCCL: ncclCommInitRank: invalid usage (5)"),
                ({"device": "cpu"}, 2, "--distributed nccl: found --device cpu, want cuda")):
            done = self.two("--steps", "1", **more)
            self.assertEqual(done.returncode, code, done.stderr)
            self.assertIn(message, done.stderr)

    def test_an_error_of_the_library_ends_all(self):
        done = self.two("--steps", "2", settings="devices=2,fail=ncclAllReduce:2:6")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("NCCL: ncclAllReduce: remote process exited", done.stderr)


if __name__ == "__main__":
    unittest.main()
