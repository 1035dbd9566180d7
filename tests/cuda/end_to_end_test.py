"""Small networks on --device cuda: each verb, against the CPU and the float64 reference, and what
failures look like. With FAKE_CUDA, a stand-in for the driver that runs kernels on the CPU; without, on
the GPU of this machine."""
import json
import os
import pathlib
import subprocess
import tempfile
import unittest

import numpy as np

from networks import convolutions, feed_forward, halves, transformer

HEDDLE, FAKE = os.environ["HEDDLE"], os.environ.get("FAKE_CUDA", "")


class EndToEnd(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.path = pathlib.Path(cls.folder.name)
        cls.models = {"convolutions": convolutions(cls.path / "c.onnx"),
                      "transformer": transformer(cls.path / "t.onnx")}

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def heddle(self, *arguments, settings="", driver=FAKE):
        environment = {**os.environ, "HEDDLE_CACHE_DIR": str(self.path / "cache")}
        if driver:
            environment["HEDDLE_CUDA_DRIVER"] = driver
        if FAKE:
            environment |= {"HEDDLE_NVCC": f"{pathlib.Path(FAKE).parent}/heddle_fake_nvcc",
                            "HEDDLE_CUTLASS": f"{pathlib.Path(FAKE).parent}/fake_cutlass",
                            "HEDDLE_NVRTC": FAKE, "HEDDLE_CUBLASLT": FAKE, "HEDDLE_FAKE_CUDA": f"cache={self.path}/emulated,{settings}"}
        return subprocess.run([HEDDLE, *map(str, arguments)], capture_output=True, text=True,
                              timeout=300, env=environment)

    def good(self, *arguments, **how):
        done = self.heddle(*arguments, **how)
        self.assertEqual(done.returncode, 0, f"{arguments}: {done.stderr}")
        return done.stdout

    def test_networks_give_the_numbers_of_the_cpu(self):
        for name, model in self.models.items():
            shape = [2, 3, 13, 17] if name == "convolutions" else [19, 24]
            x = np.random.default_rng().normal(size=shape).astype(np.float32)
            np.save(self.path / "x.npy", x)
            found = {}
            for device in ("cpu", "cuda"):
                self.good("run", model, "--device", device, "--input", f"x={self.path}/x.npy",
                          "--save", self.path / "y.npy")
                found[device] = np.load(self.path / "y.npy")
            np.testing.assert_allclose(found["cuda"], found["cpu"], rtol=1e-4, atol=1e-5)

    def test_every_kernel_agrees_with_the_reference(self):
        for model in self.models.values():
            for settings in ("order=reverse", "order=random"):
                self.good("verify", model, "--device", "cuda", "--tolerance", "1e-4", settings=settings)

    def test_every_verb_speaks_json(self):
        model, artefact = self.models["transformer"], self.path / "t.heddle"
        for row in [("compile", model, "-o", artefact), ("run", artefact), ("run", model), ("check", model),
                    ("bench", model, "--duration", "0.05", "--rounds", "2"), ("verify", model),
                    ("explain", model), ("profile", model, "--iterations", "2"), ("doctor",)]:
            device = [] if row[0] == "doctor" else ["--device", "cuda"]
            self.assertIsInstance(json.loads(self.good(*row, *device, "--json")), dict, row)

    @unittest.skipUnless(FAKE, "needs the schedule of a small GPU")
    def test_tiles_by_the_copy_engine(self):
        model, text = halves(self.path / "h.onnx"), self.path / "h.cu"
        self.good("compile", model, "--device", "cuda", "--emit", "cuda", "-o", text)
        self.assertIn("hd::tma_load_2d", text.read_text())
        self.good("verify", model, "--device", "cuda", settings="races=1")
        artefact = self.path / "h.heddle"
        self.good("compile", model, "--device", "cuda", "-o", artefact)
        self.good("run", artefact, "--device", "cuda")

    def test_compiles_for_gpus_that_are_not_here(self):
        for arch in ("sm_80", "sm_90a"):
            text = self.path / "t.cu"
            self.good("compile", self.models["transformer"], "--device", "cuda", "--arch", arch, "--emit",
                      "cuda", "-o", text, driver="/nonexistent/libcuda.so.1")
            self.assertIn("__global__", text.read_text())
        shown = json.loads(self.good("explain", self.models["transformer"], "--device", "cuda", "--json"))
        self.assertTrue(any(k["schedule"].startswith("attention") for k in shown["kernels"]))

    @unittest.skipUnless(FAKE, "needs a library of products that is faster")
    def test_products_by_the_library_are_chosen_by_measurement(self):
        model, artefact = self.models["transformer"], self.path / "l.heddle"
        self.good("compile", model, "--device", "cuda", "--budget", "20", "-o", artefact)
        shown = json.loads(self.good("explain", artefact, "--device", "cuda", "--json"))
        self.assertTrue(any(k["schedule"].startswith("cuBLASLt") for k in shown["kernels"]))
        x = np.random.default_rng(5).normal(size=[19, 24]).astype(np.float32)
        np.save(self.path / "x.npy", x)
        found = {}
        for device, what in (("cpu", model), ("cuda", artefact)):
            self.good("run", what, "--device", device, "--input", f"x={self.path}/x.npy",
                      "--save", self.path / "y.npy")
            found[device] = np.load(self.path / "y.npy")
        np.testing.assert_allclose(found["cuda"], found["cpu"], rtol=1e-4, atol=1e-5)

    @unittest.skipUnless(FAKE, "needs templates that are faster")
    def test_units_of_templates_are_chosen_at_full_budget(self):
        model, artefact = feed_forward(self.path / "f.onnx"), self.path / "f.heddle"
        how = ["--device", "cuda", "--precision", "f16"]
        self.good("compile", model, *how, "--budget", "full", "-o", artefact)
        shown = json.loads(self.good("explain", artefact, "--device", "cuda", "--json"))
        units = [k["schedule"] for k in shown["kernels"] if k["schedule"].startswith("cutlass ")]
        self.assertEqual(len(units), 2, shown["kernels"])
        self.good("verify", model, *how, "--budget", "full")
        x = np.random.default_rng(7).normal(size=[128, 64]).astype(np.float32)
        np.save(self.path / "x.npy", x)
        found = {}
        for device, what in (("cpu", model), ("cuda", artefact)):
            self.good("run", what, "--device", device, "--input", f"x={self.path}/x.npy", "--save", self.path / "y.npy")
            found[device] = np.load(self.path / "y.npy")
        np.testing.assert_allclose(found["cuda"], found["cpu"], rtol=0.02, atol=0.02)

    def assert_fails(self, code, part, *arguments, **how):
        done = self.heddle(*arguments, **how)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        self.assertIn(part, done.stderr)

    def test_what_is_not_here_is_named(self):
        model = self.models["transformer"]
        self.assert_fails(6, "/nonexistent/libcuda.so.1", "run", model, "--device", "cuda",
                          driver="/nonexistent/libcuda.so.1")
        self.assert_fails(6, "GPUs", "run", model, "--device", "cuda:97")
        self.assert_fails(2, "want cpu, cuda or cuda:N", "run", model, "--device", "cuda:x")
        self.assert_fails(2, "want sm_80", "compile", model, "--device", "cuda", "--arch", "sm_35",
                          "-o", self.path / "a")

    @unittest.skipUnless(FAKE, "needs a driver that fails when asked")
    def test_failures_of_the_driver(self):
        model = self.models["transformer"]
        self.assert_fails(5, "out of memory", "run", model, "--device", "cuda", settings="memory=10000")
        self.assert_fails(1, "kernel '", "run", model, "--device", "cuda",
                          settings="fail=cuLaunchKernelEx:2:701")
        self.assert_fails(6, "made for 'cuda sm_90a'", "run", self.compiled(model), "--device", "cuda",
                          settings="arch=80")

    def compiled(self, model):
        artefact = self.path / "made.heddle"
        self.good("compile", model, "--device", "cuda", "-o", artefact)
        return artefact


if __name__ == "__main__":
    unittest.main()
