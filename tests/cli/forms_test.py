"""Forms of a program: precision, machine code without Heddle, tuned and locked plans."""
import ctypes
import json
import os
import pathlib
import re
import subprocess
import unittest

import numpy as np
import onnx.numpy_helper
from onnx import TensorProto, helper

from command import HEDDLE, CommandTest, heddle, model


def aligned(shape, dtype):
    """An array that starts at a multiple of 64 bytes."""
    data = np.zeros(int(np.prod(shape)) * np.dtype(dtype).itemsize + 64, np.uint8)
    start = -data.ctypes.data % 64
    return data[start:len(data) - 64 + start].view(dtype).reshape(shape)


def native_run(library, name, inputs, outputs):
    """Runs a library that `compile --emit so` made, with two threads."""
    code = ctypes.CDLL(str(library))
    create, run, destroy = (getattr(code, f"{name}_{f}") for f in ("create", "run", "destroy"))
    create.restype = ctypes.c_void_p
    results = [aligned(shape, helper.tensor_dtype_to_np_dtype(dtype)) for _, dtype, shape in outputs]
    arguments = []
    for value in inputs:
        arguments.append(aligned(value.shape, value.dtype))
        arguments[-1][:] = value
    session = ctypes.c_void_p(create(2))
    pointers = [(ctypes.c_void_p * len(list_))(*[a.ctypes.data for a in list_])
                for list_ in (arguments, results)]
    assert run(session, *pointers) == 0
    destroy(session)
    return results


class Forms(CommandTest):
    def test_trtexec_spellings(self):
        engine, times = self.path / "e.heddle", self.path / "times.json"
        done = heddle("compile", "--onnx", self.good, "--saveEngine", engine, "--fp16")
        self.assertEqual(done.returncode, 0, done.stderr)
        done = heddle("bench", "--loadEngine", engine, "--warmUp", 5, "--iterations", 300, "--duration",
                      0.02, "--percentile", "25,97.5", "--exportTimes", times, "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        result = json.loads(done.stdout)["heddle"]
        self.assertGreaterEqual(result["n"], 300)
        self.assertLessEqual(result["p25_ms"], result["median_ms"])
        self.assertLessEqual(result["p95_ms"], result["p97.5_ms"])
        self.assertEqual(len(json.loads(times.read_text())), result["n"])

    def test_locked_decisions_are_made_again(self):
        path, lock = self.weighted(), self.path / "decisions.db"
        self.assert_fails(2, "--budget none", "compile", path, "--locked", lock)
        plans = []
        for k in range(3):
            plan = self.path / f"{k}.plan"
            flags = ("--budget", 3) if k == 0 else ()
            done = heddle("compile", path, "--locked", lock, *flags, "--emit", "plan", "-o", plan)
            self.assertEqual(done.returncode, 0, done.stderr)
            plans.append(plan.read_text())
        self.assertIn("measured", plans[0])
        self.assertEqual(plans[0], plans[1])
        self.assertEqual(plans[0], plans[2])
        self.assert_fails(1, "found no kernel of this model", "run", self.good, "--locked", lock)
        self.assert_fails(1, "this machine", "run", path, "--locked", lock, "--threads", 3)

    def test_locked_mode_is_decided_again(self):
        """What the first run with a budget measures, or an error where that is needed."""
        path, lock = self.weighted(), self.path / "decisions.db"

        def mode(*flags):
            done = heddle("explain", path, "--locked", lock, "--threads", 2, "--json", *flags)
            self.assertEqual(done.returncode, 0, done.stderr)
            return json.loads(done.stdout)["mode"]
        first = mode("--budget", 3)
        self.assertIn("measured", first["reason"])
        self.assertGreater(len(first["measured"]), 1)
        for flags in ((), ("--budget", 3)):
            again = mode(*flags)
            self.assertEqual(again["chosen"], first["chosen"])
            self.assertEqual(again["reason"], "locked: as it was measured")
            self.assertEqual(again["measured"], [])
        # Another --mode is another decision, which only a budget allows.
        self.assertEqual(mode("--mode", "monolith")["reason"], "locked: no decision in it, not measured")
        tuned = ("--mode", "monolith:tuned")
        self.assert_fails(2, "found no stages tuned", "explain", path, "--locked", lock, "--threads", 2, *tuned)
        self.assertIn("measured", mode(*tuned, "--budget", 1)["reason"])
        artefacts = []
        for k in range(2):
            artefact = self.path / f"{k}.heddle"
            done = heddle("compile", path, "--locked", lock, "--threads", 2, *tuned, "-o", artefact)
            self.assertEqual(done.returncode, 0, done.stderr)
            artefacts.append(re.findall(rb'"own":\[\[.*?\]\]|"ns":\d+', artefact.read_bytes()))
        self.assertEqual(mode(*tuned)["chosen"], "monolith:tuned")
        self.assertGreater(len(artefacts[0]), 1)  # its stages' layouts, and times to schedule them by
        self.assertEqual(*artefacts)

    def test_tuning_goes_on(self):
        path, cache = self.weighted(), ("--cache", self.path / "tuned")
        replies = []
        for budget in ("1e-9", "full", "full"):
            done = heddle("tune", path, "--budget", budget, "--json", *cache)
            self.assertEqual(done.returncode, 0, done.stderr)
            replies.append(json.loads(done.stdout))
        self.assertEqual([r["complete"] for r in replies], [False, True, True])
        self.assertEqual(replies[0]["timed"], 0)
        self.assertGreater(replies[1]["timed"], 0)
        self.assertEqual(replies[2]["timed"], 0)
        self.assertGreater(replies[2]["known"], 0)
        self.assertEqual(replies[1]["plan_us"], replies[2]["plan_us"])
        self.assertIn("measured", heddle("explain", path, "--budget", "full", *cache).stdout)
        self.assert_fails(2, "--cache none", "tune", path, "--cache", "none")

    def schedule_of(self, path, *flags):
        """Of the kernel with the product: its structure, schedule and who chose it; and stderr."""
        done = heddle("explain", path, "--json", *flags)
        self.assertEqual(done.returncode, 0, done.stderr)
        report = json.loads(done.stdout)
        kernel = next(k for k in report["kernels"] if k["schedule"].startswith("contract"))
        return kernel, report["schedules"], done.stderr

    def test_tuned_schedules(self):
        path, file = self.weighted(), self.path / "schedules.txt"
        own, _, _ = self.schedule_of(path, "--schedules", "none", "--cpu", "znver4")
        self.assertEqual(own["schedule_from"], "lowering")
        self.assertIn("mr=5", own["schedule"])
        shipped = pathlib.Path(__file__).parents[2] / "src/plan/schedules/znver4.txt"
        first = shipped.read_text().splitlines()[0] + "\n"  # of this version of the lowering
        row = f"{own['structure']} 1.5 mr=2 nv=1 # a product\n"
        file.write_text(first + row)
        flags = ("--schedules", file, "--cpu", "znver4")
        tuned, source, _ = self.schedule_of(path, *flags)
        self.assertEqual(tuned["schedule_from"], "tuned schedules")
        self.assertIn("mr=2 nv=1", tuned["schedule"])
        self.assertEqual(source, {"source": str(file), "kernels": 1})
        self.assertIn("tuned schedules: 1 kernels", heddle("explain", path, *flags).stdout)
        # Another number of threads, or accuracy, is another thing.
        for other in (("--threads", 3), ("--accuracy", "strict")):
            kernel, _, _ = self.schedule_of(path, *flags, *other)
            self.assertEqual(kernel["schedule_from"], "lowering")
        # A schedule that means nothing (any more) leaves the lowering's own.
        file.write_text(first + row.replace("mr=2 nv=1", "nothing=1"))
        self.assertEqual(self.schedule_of(path, *flags)[0]["schedule"], own["schedule"])
        # What was made for something else is not used; what cannot be read is an error.
        for stale, why in ((first.split("lowering")[0] + "lowering=99\n", "version 99 of the lowering"),
                           (first.replace("znver4", "znver2"), "made for znver2")):
            file.write_text(stale + row)
            kernel, source, said = self.schedule_of(path, *flags)
            self.assertEqual((kernel["schedule_from"], kernel["schedule"]), ("lowering", own["schedule"]))
            self.assertIn(why, source["source"])
            self.assertIn(why, said)
        file.write_text(first + "nonsense\n")
        self.assert_fails(2, "schedules.txt:2: found 'nonsense'", "run", path, *flags)
        file.write_bytes(bytes(range(256)))
        self.assert_fails(2, "schedules.txt:1: found", "run", path, *flags)
        self.assert_fails(2, "cannot read", "run", path, "--schedules", self.path / "absent")

    def test_tuning_saves_schedules(self):
        path, file = self.weighted(), self.path / "schedules.txt"
        done = heddle("tune", path, "--budget", "full", "--save", file, "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        rows = file.read_text().splitlines()
        self.assertRegex(rows[0], "^heddle schedules cpu=[a-z0-9-]+ lowering=[0-9]+$")
        self.assertEqual(len(rows), 1 + json.loads(done.stdout)["saved"])
        done = heddle("explain", path, "--json", "--schedules", file)
        self.assertEqual(json.loads(done.stdout)["schedules"]["kernels"], len(rows) - 1)

    def test_schedules_are_not_saved_over_others(self):
        path, file = self.weighted(), self.path / "others.txt"
        text = "heddle schedules cpu=z80 lowering=1\n"
        file.write_text(text)
        for target, why in ((file, "made for z80"), (self.path, "cannot read"), (self.path / "no" / "x", "no such folder")):
            done = heddle("tune", path, "--budget", "1", "--save", target)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(why, done.stderr)
        self.assertEqual(file.read_text(), text)

    def test_constants_are_in_memory_once(self):
        """The peak of compiling and running holds neither the file nor all constants twice."""
        widths, weights = [2048, 4096, 2048, 4096, 2048], []
        for k in range(4):
            value = np.random.default_rng(k).normal(size=widths[k:k + 2]).astype(np.float32)
            weights.append(onnx.numpy_helper.from_array(value, f"w{k}"))
        nodes = [helper.make_node("MatMul", [f"x{k}" if k else "x", f"w{k}"], [f"x{k + 1}" if k < 3 else "y"])
                 for k in range(4)]
        path = self.save("large", model(nodes, [("x", [3, 2048])], [("y", [3, 2048])], weights))
        done = heddle("bench", path, "--duration", 0.02, "--cache", "none", "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        megabytes = 4 * 2048 * 4096 * 4 / 2**20
        self.assertLess(json.loads(done.stdout)["heddle"]["peak_mb"], 1.25 * megabytes + 90)

    def test_precision(self):
        path = self.weighted()
        x = np.random.default_rng().normal(size=(5, 64)).astype(np.float32)
        np.save(self.path / "x.npy", x)
        outputs, sizes = {}, {}
        for precision in ("f32", "f16", "bf16"):
            y, artefact = self.path / f"{precision}.npy", self.path / f"{precision}.heddle"
            done = heddle("run", path, "--precision", precision, "--input", f"x={self.path}/x.npy",
                          "--save", y)
            self.assertEqual(done.returncode, 0, done.stderr)
            outputs[precision] = np.load(y)
            self.assertEqual(outputs[precision].dtype, np.float32)
            done = heddle("verify", path, "--precision", precision)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            heddle("compile", path, "--precision", precision, "-o", artefact)
            sizes[precision] = artefact.stat().st_size
        scale = np.abs(outputs["f32"]).max()
        for precision, least, most in (("f16", 0, 5e-3), ("bf16", 1e-5, 4e-2)):
            error = np.abs(outputs[precision] - outputs["f32"]).max() / scale
            self.assertTrue(least < error < most, (precision, error))
            self.assertLess(sizes[precision], sizes["f32"] - 64 * 300)
        self.assert_fails(2, "tf32", "run", path, "--precision", "tf32")
        self.assert_fails(2, "compiled with", "run", self.path / "f16.heddle", "--precision", "bf16")

    def test_native_code_runs_without_heddle(self):
        path = self.weighted()
        x = np.random.default_rng().normal(size=(5, 64)).astype(np.float32)
        np.save(self.path / "x.npy", x)
        heddle("run", path, "--input", f"x={self.path}/x.npy", "--save", self.path / "y.npy")
        wanted = np.load(self.path / "y.npy")
        library = self.path / "my-model.so"
        done = heddle("compile", path, "--emit", "so", "-o", library)
        self.assertEqual(done.returncode, 0, done.stderr)
        needed = subprocess.run(["ldd", library], capture_output=True, text=True).stdout
        self.assertNotRegex(needed, "heddle|LLVM|stdc")
        (self.path / "use.c").write_text("""
            #include <stdio.h>
            #include <string.h>
            #include "my-model.h"
            static _Alignas(64) float x[5 * 64], y[5 * 300];
            int main(int argc, char** argv) {
              FILE* in = fopen(argv[1], "rb");
              if (fread(x, sizeof x, 1, in) != 1 || my_model_inputs[0].bytes != sizeof x) return 1;
              if (strcmp(my_model_outputs[0].name, "y") || my_model_outputs[0].shape[1] != 300) return 2;
              for (int threads = 1; threads < 4; ++threads) {
                my_model_session* s = my_model_create(threads);
                const void* inputs[] = {x};
                void *outputs[] = {y}, *odd[] = {(char*)y + 4};
                if (!s || my_model_run(s, inputs, odd) != -1) return 3;
                for (int i = 0; i < 50; ++i) memset(y, 0, sizeof y), my_model_run(s, inputs, outputs);
                my_model_destroy(s);
                if (fwrite(y, sizeof y, 1, stdout) != 1) return 4;
              }
              return 0;
            }""")
        x.tofile(self.path / "x.bin")
        for kind in ("so", "o"):
            files = [f"./my-model.{kind}"]
            if kind == "o":  # another with the same kernels beside it
                files.append("./other.o")
                for name in files:
                    done = heddle("compile", path, "--emit", "obj", "-o", self.path / name)
                    self.assertEqual(done.returncode, 0, done.stderr)
            built = subprocess.run(["cc", "-Wall", "-Werror", "use.c", *files, "-o", "use",
                                    "-lm", "-lpthread"], cwd=self.path, capture_output=True, text=True)
            self.assertEqual(built.returncode, 0, built.stderr)
            done = subprocess.run(["./use", "x.bin"], cwd=self.path, capture_output=True, timeout=60)
            self.assertEqual(done.returncode, 0)
            for y in np.frombuffer(done.stdout, np.float32).reshape(3, 5, 300):
                np.testing.assert_array_equal(y, wanted)  # the same code, for any number of threads

    def test_native_code_runs_kernels(self):
        """A monolith that is asked for is a warning, and none is measured."""
        self.assertIn("--mode kernels", " ".join(heddle("compile", "--help").stdout.split()))
        reply = self.path / "reply.so"
        for mode, says in (("kernels", ""), ("auto", ""), ("monolith", "kernels one after another"),
                           ("monolith:tuned", "kernels one after another")):
            done = heddle("compile", self.good, "--mode", mode, "--emit", "so", "-o", reply)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn(says, done.stderr)
            self.assertEqual(f"--mode {mode}: without effect" in done.stderr, says != "")
        # All of them are one program, made once.
        self.assertEqual(len(list((self.path / "cache" / "programs").iterdir())), 1)
        self.assert_fails(2, "'deep'", "compile", self.good, "--mode", "monolith:deep", "--emit",
                          "so", "-o", reply)

    def test_native_code_multiplies_in_tiles(self):
        """Where the processor has tile registers; elsewhere the same product otherwise."""
        rng = np.random.default_rng()
        x, w = (rng.normal(size=s).astype(np.float32) for s in ((96, 512), (512, 320)))
        path = self.save("wide", model([helper.make_node("MatMul", ["x", "w"], ["y"])], [("x", [96, 512])],
                                       [("y", [96, 320])], [onnx.numpy_helper.from_array(w, "w")]))
        library, artefact = self.path / "wide.so", self.path / "wide.heddle"
        for form, output in (("so", library), ("artefact", artefact)):
            done = heddle("compile", path, "--emit", form, "-o", output)
            self.assertEqual(done.returncode, 0, done.stderr)
        y = native_run(library, "wide", [x], [("y", TensorProto.FLOAT, [96, 320])])[0]
        np.testing.assert_allclose(y, x @ w, rtol=0, atol=1e-3)
        np.save(self.path / "x.npy", x)
        done = heddle("run", artefact, "--input", f"x={self.path}/x.npy", "--save", self.path / "y.npy")
        self.assertEqual(done.returncode, 0, done.stderr)
        np.testing.assert_allclose(np.load(self.path / "y.npy"), x @ w, rtol=0, atol=1e-3)
        if "tile registers" in heddle("doctor").stdout:
            self.assertIn("tdpbf16ps", subprocess.run(["objdump", "-d", library], capture_output=True,
                                                      text=True).stdout)

    def test_native_code_brings_its_routines(self):
        """Sorting, integer powers and f16 without instructions for it."""
        rng = np.random.default_rng()
        x = rng.integers(-9, 9, size=(4, 301)).astype(np.float32)  # many are equal
        x[1, 7] = np.nan
        n = rng.integers(-3, 4, size=(4, 301))
        ports = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 301]),
                 helper.make_tensor_value_info("n", TensorProto.INT64, [4, 301])]
        outputs = [("v", TensorProto.FLOAT, [4, 40]), ("i", TensorProto.INT64, [4, 40]),
                   ("s", TensorProto.INT64, [4, 301]), ("p", TensorProto.INT64, [4, 301]),
                   ("h", TensorProto.FLOAT16, [4, 301])]
        graph = helper.make_graph(
            [helper.make_node("TopK", ["x", "forty"], ["v", "i"]),
             helper.make_node("TopK", ["n", "all"], ["s", "order"], largest=0),
             helper.make_node("Pow", ["n", "n"], ["p"]),
             helper.make_node("Exp", ["x"], ["e"]),
             helper.make_node("Cast", ["e"], ["h"], to=TensorProto.FLOAT16)],
            "g", ports, [helper.make_tensor_value_info(*o) for o in outputs],
            [onnx.numpy_helper.from_array(np.array([k]), name) for k, name in ((40, "forty"), (301, "all"))])
        path = self.save("routines", helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]))
        for name, value in (("x", x), ("n", n)):
            np.save(self.path / f"{name}.npy", value)
        wanted = self.path / "wanted"
        wanted.mkdir()
        for level in ("sse", "avx2"):
            done = heddle("run", path, "--cpu", level, "--save", wanted, "--input", f"x={self.path}/x.npy",
                          "--input", f"n={self.path}/n.npy")
            if done.returncode == 6:
                continue
            self.assertEqual(done.returncode, 0, done.stderr)
            library = self.path / f"{level}.so"
            done = heddle("compile", path, "--cpu", level, "--emit", "so", "-o", library)
            self.assertEqual(done.returncode, 0, done.stderr)
            for k, value in enumerate(native_run(library, level, [x, n], outputs)):
                np.testing.assert_array_equal(value, np.load(wanted / f"output_{k}.npy"))
        noise = self.save("noise", model([helper.make_node("RandomNormalLike", ["x"], ["y"], seed=1.0)],
                                         [("x", [9])], [("y", [9])]))
        for kind in ("so", "obj", "exe"):
            self.assert_fails(3, "'heddle_random_normal', which only Heddle's own", "compile", noise,
                              "--emit", kind, "-o", self.path / "noise")

    def test_native_program_times_itself(self):
        program = self.path / "timed"
        done = heddle("compile", self.good, "--emit", "exe", "-o", program)
        self.assertEqual(done.returncode, 0, done.stderr)
        done = subprocess.run([program, "2", "0.05"], capture_output=True, text=True, timeout=60)
        self.assertRegex(done.stdout, r"^\d+ runs, 2 threads: median \d+\.\d+ ms")
        self.assertEqual(subprocess.run([program, "0"], capture_output=True).returncode, 2)

    def test_native_code_needs_a_compiler(self):
        done = subprocess.run([HEDDLE, "compile", self.good, "--emit", "so", "-o", self.path / "m.so"],
                              capture_output=True, text=True, env={**os.environ, "PATH": ""})
        self.assertEqual(done.returncode, 6)
        self.assertIn("'cc'", done.stderr)


if __name__ == "__main__":
    unittest.main()
