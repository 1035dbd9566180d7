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

from networks import (convolutions, counted, eighths, feed_forward, halves, perceptron,
                      transformer)

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
            environment["HEDDLE_FAKE_CUDA"] = f"cache={self.path}/emulated,{settings}"
        if FAKE and driver:
            folder = pathlib.Path(FAKE).parent
            environment |= {"HEDDLE_NVRTC": FAKE, "HEDDLE_CUBLASLT": FAKE,
                            "HEDDLE_NVCC": f"{folder}/heddle_fake_nvcc",
                            "HEDDLE_CUTLASS": f"{folder}/fake_cutlass"}
        return subprocess.run([HEDDLE, *map(str, arguments)], capture_output=True, text=True,
                              timeout=300, env=environment)

    def good(self, *arguments, **how):
        done = self.heddle(*arguments, **how)
        self.assertEqual(done.returncode, 0, f"{arguments}: {done.stderr}")
        return done.stdout

    def test_a_ring_that_nothing_has_is_said(self):
        def said(*arguments):
            return self.heddle("explain", self.models["transformer"], "--device", "cuda", "--ring", "off",
                               *arguments).stderr
        if FAKE:  # another GPU's code
            self.assertIn("--ring off: without effect: code for sm_80", said("--arch", "sm_80", "--mode", "monolith"))
        ours = ["--arch", "sm_90a"]
        self.assertIn("--ring off: without effect: --mode kernels", said(*ours, "--mode", "kernels"))
        self.assertNotIn("--ring", said(*ours, "--mode", "monolith"))

    def test_steps_name_a_way_to_their_text(self):
        x = self.good("explain", self.models["transformer"], "--device", "cuda")
        self.assertIn("compile --emit cuda writes all", x)
        step = self.good("explain", self.models["transformer"], "--device", "cuda", "--train", "mse", "--dump",
                         "source", "--dump-dir", self.path / "dump")
        self.assertIn("--dump source writes all", step)
        self.assertTrue(list((self.path / "dump").glob("*.cu*")))

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

    def test_casts_to_8_bits(self):
        model = eighths(self.path / "e.onnx")
        self.assertIn("nothing stands in the way", self.good("check", model, "--device", "cuda"))
        self.good("verify", model, "--device", "cuda")

    @unittest.skipUnless(FAKE, "needs a compiler that fails when asked")
    def test_check_compiles(self):
        done = self.heddle("check", halves(self.path / "h.onnx"), "--device", "cuda",
                           settings="fail=nvrtcCompileProgram:1:6")
        self.assertEqual(done.returncode, 3, done.stdout + done.stderr)
        self.assertIn("injected failure", done.stdout)

    def test_every_verb_speaks_json(self):
        model, artefact = self.models["transformer"], self.path / "t.heddle"
        for row in [("compile", model, "-o", artefact), ("run", artefact), ("run", model), ("check", model),
                    ("bench", model, "--duration", "0.05", "--rounds", "2"), ("verify", model),
                    ("explain", model), ("profile", model, "--iterations", "2"), ("doctor",)]:
            device = [] if row[0] == "doctor" else ["--device", "cuda"]
            self.assertIsInstance(json.loads(self.good(*row, *device, "--json")), dict, row)

    def both(self, *arguments, at, **how):
        """Results on the CPU and on the GPU."""
        found = []
        for device in ("cpu", "cuda"):
            self.good(*arguments, "--device", device, **how)
            found.append(np.load(self.path / at))
        return found

    def test_stages(self):
        x = np.random.default_rng().normal(size=23).astype(np.float32)
        np.save(self.path / "x.npy", x)
        cpu, cuda = self.both("run", counted(self.path / "n.onnx"), "--input", f"x={self.path}/x.npy",
                              "--save", self.path / "y.npy", at="y.npy")
        self.assertEqual(len(cpu), np.count_nonzero(np.tanh(x) > np.float32(0.1)))
        np.testing.assert_allclose(cuda, cpu, rtol=1e-5, atol=1e-6)

    def trained(self, device, *options, **how):
        rng = np.random.default_rng(6)
        np.save(self.path / "x.npy", rng.normal(size=[12, 6]).astype(np.float32))
        np.save(self.path / "t.npy", rng.normal(size=[12, 3]).astype(np.float32))
        return self.heddle("train", perceptron(self.path / "p.onnx"), "--data", f"x={self.path}/x.npy", "--target",
                           self.path / "t.npy", "--loss", "mse", "--steps", "5", "--json", "--device", device,
                           *options, **how)

    def test_training(self):
        losses = {}
        for device in ("cpu", "cuda"):
            done = self.trained(device)
            self.assertEqual(done.returncode, 0, done.stderr)
            losses[device] = json.loads(done.stdout)["losses"]
        self.assertEqual(len(losses["cpu"]), 5)
        np.testing.assert_allclose(losses["cuda"], losses["cpu"], rtol=1e-4)

    def test_tuning(self):
        shown = json.loads(self.good("tune", perceptron(self.path / "p.onnx"), "--device", "cuda", "--budget",
                                     "5", "--json"))
        self.assertGreater(shown["timed"] + shown["known"], 0)
        self.assertEqual(shown["failed"], 0)

    @unittest.skipUnless(FAKE, "needs libraries in an unusual place")
    def test_options_reach_every_session(self):
        libraries = [x for name in ("cuda-driver", "nvrtc", "cublaslt") for x in (f"--{name}", FAKE)]
        np.save(self.path / "ones.npy", np.ones(23, np.float32))
        for settings, option in (("devices=1", []), ("fail=cuStreamBeginCapture_v2:1:801", ["--cuda-graph", "0"])):
            how = {"driver": "", "settings": settings}
            self.good("run", counted(self.path / "n.onnx"), "--device", "cuda", "--input",
                      f"x={self.path}/ones.npy", *libraries, *option, **how)
            done = self.trained("cuda", *libraries, *option, **how)
            self.assertEqual(done.returncode, 0, done.stderr)

    @unittest.skipUnless(FAKE, "needs two GPUs")
    def test_the_second_gpu(self):
        done = self.trained("cuda:1", settings="devices=2")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assert_fails(6, "GPUs", "run", self.models["transformer"], "--device", "cuda:2", settings="devices=2")

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
        # A persistent kernel holds no library's product.
        self.good("compile", model, "--device", "cuda", "--mode", "kernels", "--budget", "20", "-o", artefact)
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

    def test_artefacts_are_for_one_device(self):
        model, cpu = self.models["transformer"], self.path / "cpu.heddle"
        self.good("compile", model, "-o", cpu)
        cuda = self.compiled(model)
        arch = json.loads(self.good("explain", cuda, "--json"))["device"]
        self.assert_fails(2, f"'{cpu}' was compiled for cpu", "run", cpu, "--device", "cuda")
        self.assert_fails(2, f"'{cuda}' was compiled for {arch}", "run", cuda, "--device", "cpu")
        self.assert_fails(2, f"'{cuda}' was compiled for {arch}", "explain", cuda, "--arch", "sm_89")
        self.assert_fails(2, "found --device cpu, want cuda", "compile", model, "--arch", "sm_80", "-o", cpu)
        self.good("run", cuda)
        self.good("run", cuda, "--device", "cuda", "--arch", arch.split()[1])

    @unittest.skipUnless(FAKE, "needs a GPU that is too old")
    def test_gpus_that_are_too_old(self):
        model = self.models["transformer"]
        for verb in (("run", model), ("compile", model, "-o", self.path / "old.heddle"), ("explain", model)):
            self.assert_fails(6, "emulated GPU of capability 7.5, want 8.0 (sm_80) or newer", *verb, "--device",
                              "cuda", settings="arch=75")
        self.good("compile", model, "--device", "cuda", "--arch", "sm_80", "-o", self.path / "old.heddle",
                  settings="arch=75")
        self.assert_fails(6, "emulated GPU (sm_75)", "run", self.path / "old.heddle", settings="arch=75")

    @unittest.skipUnless(FAKE, "needs a driver that fails when asked")
    def test_a_driver_that_does_not_answer_is_named(self):
        model, text = self.models["transformer"], self.path / "w.cu"
        emit = ("compile", model, "--device", "cuda", "--emit", "cuda", "-o", text)
        done = self.heddle(*emit, settings="fail=cuInit:1:999")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("warning", done.stderr)
        self.assertIn("cuInit", done.stderr)
        self.assertEqual(self.heddle(*emit, settings="fail=cuInit:1:100").stderr, "")

    def libraries(self, **how):
        shown = json.loads(self.good("doctor", "--json", **how))
        return {row["name"]: (row["found"], row["detail"]) for row in shown["optional"]}

    @unittest.skipUnless(FAKE, "needs libraries that are none")
    def test_doctor_loads_what_it_finds(self):
        self.assertIn("version 13.0", self.libraries()["cuBLASLt"][1])
        os.environ["HEDDLE_CUBLASLT"] = "/nonexistent/libcublasLt.so"
        try:
            found, detail = self.libraries(driver="")["cuBLASLt"]
        finally:
            del os.environ["HEDDLE_CUBLASLT"]
        self.assertFalse(found)
        self.assertIn("/nonexistent/libcublasLt.so", detail)
        found, detail = self.libraries(settings="arch=sm_90a")["CUDA driver"]
        self.assertFalse(found)
        self.assertIn("found arch=sm_90a, want a number", detail)

    @unittest.skipUnless(FAKE, "needs launches that fail")
    def test_tuning_names_what_cannot_be_launched(self):
        done = self.heddle("tune", perceptron(self.path / "p.onnx"), "--device", "cuda", "--budget", "5", "--cache",
                           self.path / "untuned", settings="fail=cuLaunchKernelEx:0:701")
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertIn("nothing could be measured", done.stderr)
        self.assertIn("kernel '", done.stderr)

    def test_text_names_source_nodes(self):
        text = self.path / "named.cu"
        self.good("compile", self.models["transformer"], "--device", "cuda", "--emit", "cuda", "-o", text)
        self.assertRegex(text.read_text(), r"hd::erf\(.*// %\d+ .*Erf 'e'")
        self.assertRegex(text.read_text(), r"// %\d+ Softmax 'attention'")
        self.assertRegex(self.good("explain", self.models["transformer"], "--device", "cuda", "--node", "attention"),
                         r"hd::.*// %\d+ Softmax 'attention'")
        shown = json.loads(self.good("explain", self.models["transformer"], "--device", "cuda", "--json"))
        for kernel in shown["kernels"]:
            lines = kernel["source"].split("\n")
            for first, last, node in kernel["source_map"]["lines"]:
                self.assertLessEqual(last, len(lines))
                self.assertIn(str(node), kernel["source_map"]["primitives"])

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
