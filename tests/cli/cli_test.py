"""The command as a user meets it: exit codes, messages, JSON, on good and on hopeless input."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import numpy as np
import onnx
import onnx.numpy_helper
from onnx import TensorProto, helper

HEDDLE = os.environ["HEDDLE"]


def heddle(*arguments, timeout=60):
    return subprocess.run([HEDDLE, *map(str, arguments)], capture_output=True, text=True,
                          timeout=timeout)


def model(nodes, inputs, outputs, initializers=()):
    def info(ports):
        return [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in ports]
    graph = helper.make_graph(nodes, "g", info(inputs), info(outputs), list(initializers))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])


class Cli(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.path = pathlib.Path(self.folder.name)
        os.environ["HEDDLE_CACHE_DIR"] = str(self.path / "cache")
        self.good = self.save("good", model(
            [helper.make_node("Softmax", ["x"], ["s"], name="soft", axis=1),
             helper.make_node("Add", ["s", "x"], ["y"], name="sum")],
            [("x", [3, 37])], [("y", [3, 37])]))

    def tearDown(self):
        self.folder.cleanup()

    def save(self, name, proto):
        path = self.path / f"{name}.onnx"
        path.write_bytes(proto.SerializeToString())
        return path

    def assert_fails(self, code, part, *arguments):
        done = heddle(*arguments)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        self.assertIn(part, done.stderr)

    def test_run_saves_the_right_numbers(self):
        x = np.random.default_rng().normal(size=(3, 37)).astype(np.float32)
        np.save(self.path / "x.npy", x)
        done = heddle("run", self.good, "--input", f"x={self.path}/x.npy", "--save", self.path / "y.npy")
        self.assertEqual(done.returncode, 0, done.stderr)
        e = np.exp(x - x.max(1, keepdims=True))
        np.testing.assert_allclose(np.load(self.path / "y.npy"), e / e.sum(1, keepdims=True) + x,
                                   rtol=1e-5, atol=1e-6)

    def test_every_verb_speaks_json(self):
        artefact = self.path / "good.heddle"
        rows = [("compile", self.good, "-o", artefact), ("run", artefact), ("run", self.good),
                ("bench", self.good, "--duration", "0.05"), ("check", self.good),
                ("bench", self.good, "--duration", "0.05", "--ablation"),
                ("verify", self.good), ("explain", self.good), ("profile", self.good), ("ops",),
                ("doctor",), ("cache", "ls"), ("cache", "verify"), ("cache", "prune"),
                ("cache", "export", self.path / "t.db"), ("cache", "merge", self.path / "t.db")]
        for row in rows:
            done = heddle(*row, "--json")
            self.assertEqual(done.returncode, 0, f"{row}: {done.stderr}")
            self.assertIsInstance(json.loads(done.stdout), dict, row)

    def test_outputs_that_are_one_value(self):
        several = self.save("several", model(
            [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Relu", ["x"], ["z"]),
             helper.make_node("Identity", ["y"], ["w"]), helper.make_node("Identity", ["x"], ["v"])],
            [("x", [2, 5])], [(n, [2, 5]) for n in "yzwv"]))
        x = np.random.default_rng().normal(size=(2, 5)).astype(np.float32)
        np.save(self.path / "x.npy", x)
        out = self.path / "outputs"
        out.mkdir()
        done = heddle("run", several, "--input", f"x={self.path}/x.npy", "--save", out)
        self.assertEqual(done.returncode, 0, done.stderr)
        for i, want in enumerate([np.maximum(x, 0)] * 3 + [x]):
            np.testing.assert_array_equal(np.load(out / f"output_{i}.npy"), want)
        self.assertEqual(heddle("verify", several).returncode, 0)

    def test_budget_measures_and_is_remembered(self):
        done = heddle("compile", self.good, "-o", self.path / "a.heddle", "--budget", "5")
        self.assertEqual(done.returncode, 0, done.stderr)
        listing = json.loads(heddle("cache", "ls", "--json").stdout)
        self.assertGreater(len(listing["measurements"]), 0)
        self.assertEqual(heddle("cache", "export", self.path / "t.db").returncode, 0)
        self.assertEqual(heddle("cache", "merge", self.path / "t.db").returncode, 0)
        kernels = json.loads(heddle("explain", self.good, "--budget", "5", "--json").stdout)["kernels"]
        self.assertTrue(all(k["cost"]["provenance"] == "measured" for k in kernels), kernels)

    def fake_peer(self, body):
        """An environment whose interpreter is a script, for peers that misbehave."""
        python = self.path / "fake/bin/python"
        python.parent.mkdir(parents=True, exist_ok=True)
        python.write_text(f"#!{sys.executable}\nimport json, sys, time\nimport numpy as np\n{body}\n")
        python.chmod(0o755)
        return python.parent.parent

    def versus(self, peers, *flags):
        done = heddle("bench", self.good, "--vs", peers, "--duration", 0.05, "--json", *flags)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)["peers"]

    def test_versus(self):
        peer = self.versus("ort")["ort"]
        self.assertIsNone(peer["error"])
        self.assertTrue(peer["agrees"], peer)
        self.assertGreater(peer["ratio"], 0)
        self.assertLessEqual(peer["median_ci_ms"][0], peer["median_ms"])
        markdown = heddle("bench", self.good, "--vs", "ort", "--duration", 0.05, "--markdown")
        self.assertIn("| ort 1.", markdown.stdout)
        self.assert_fails(2, "xla", "bench", self.good, "--vs", "ort,xla")

    def test_versus_peers_that_fail(self):
        reply = "sys.stdin.readline(); print(json.dumps({}), flush=True)"
        loaded = ("sys.stdin.readline(); np.save(sys.path[0] + '/o.npy', np.zeros({}, np.float32)); "
                  "print(json.dumps(dict(ok=True, outputs=dict(y=sys.path[0] + '/o.npy'))), flush=True)")
        cases = [("time.sleep(100)", "no answer within 1 s"),
                 ("sys.exit(3)", "ended with exit code 3"),
                 ("print('what', flush=True); sys.stdin.readline()", "nonsense"),
                 (reply.format("dict(error='no op\\nat all')"), "no op"),
                 (reply.format("dict(ok=True, outputs={})"), "gives no output 'y'"),
                 (loaded.format("(3, 36)"), "output 'y' is f32[3,36], want f32[3,37]"),
                 (loaded.format("(3, 37)"), "ended with exit code 0")]
        for body, wanted in cases:
            venv = self.fake_peer(body)
            peers = self.versus("jax,iree", "--venv", venv, "--peer-timeout", 1)
            for name in ("jax", "iree"):  # the second is tried though the first failed
                self.assertIn(wanted, peers[name]["error"], body)
                self.assertNotIn("\n", peers[name]["error"])
        self.assert_fails(6, "setup_peers.sh", "bench", self.good, "--vs", "ort", "--venv",
                          self.path / "absent")

    def test_versus_a_peer_that_computes_something_else(self):
        venv = self.fake_peer(
            "sys.stdin.readline(); np.save(sys.path[0] + '/o.npy', np.ones((3, 37), np.float32))\n"
            "print(json.dumps(dict(ok=True, version='0', outputs=dict(y=sys.path[0] + '/o.npy'))), flush=True)\n"
            "for line in sys.stdin:\n"
            "    print(json.dumps(dict(ok=True, ms=[1.0] * json.loads(line)['iters'])), flush=True)")
        peer = self.versus("tvm", "--venv", venv)["tvm"]
        self.assertFalse(peer["agrees"], peer)
        self.assertAlmostEqual(peer["median_ms"], 1)
        done = heddle("bench", self.good, "--vs", "tvm", "--venv", venv, "--duration", 0.05)
        self.assertIn("DIFFERENT", done.stdout)

    def test_quantiles_of_few_samples(self):
        done = heddle("bench", self.good, "--duration", 0.01, "--rounds", 1, "--json")
        heddle_ms = json.loads(done.stdout)["heddle"]
        for name in ("median", "p90", "p95", "p99"):
            self.assertGreaterEqual(heddle_ms[f"{name}_ms"], heddle_ms["min_ms"])
            self.assertIn(f"{name}_ci_ms", heddle_ms)

    def test_explain_finds_every_operator(self):
        rng = np.random.default_rng(1)
        def weight(name, shape):
            return onnx.numpy_helper.from_array(rng.normal(size=shape).astype(np.float32) ** 2, name)
        path = self.save("folded", model(
            [helper.make_node("Conv", ["x", "w"], ["c"], name="conv"),
             helper.make_node("BatchNormalization", ["c", "s", "b", "m", "v"], ["n"], name="norm"),
             helper.make_node("Identity", ["n"], ["i"], name="same"),
             helper.make_node("Relu", ["i"], ["y"], name="relu")],
            [("x", [1, 3, 8, 8])], [("y", [1, 4, 6, 6])],
            [weight("w", (4, 3, 3, 3))] + [weight(n, (4,)) for n in "sbmv"]))
        for node in ("conv", "norm", "same", "relu"):
            done = heddle("explain", path, "--node", node)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn(f"'{node}'", done.stdout)
        self.assert_fails(2, "no kernel covers 'nobody'", "explain", path, "--node", "nobody")

    def test_vector_levels(self):
        x = np.random.default_rng(1).normal(size=(3, 37)).astype(np.float32)
        np.save(self.path / "x.npy", x)
        e = np.exp(x - x.max(1, keepdims=True))
        for level in ("sse", "avx2", "avx512"):
            done = heddle("compile", self.good, "-o", self.path / f"{level}.heddle", "--cpu", level)
            self.assertEqual(done.returncode, 0, done.stderr)
            done = heddle("run", self.good, "--cpu", level, "--input", f"x={self.path}/x.npy",
                          "--save", self.path / "y.npy")
            if done.returncode == 6:  # this machine has no such vectors
                self.assertIn("this machine has", done.stderr)
                continue
            self.assertEqual(done.returncode, 0, done.stderr)
            np.testing.assert_allclose(np.load(self.path / "y.npy"),
                                       e / e.sum(1, keepdims=True) + x, rtol=1e-5, atol=1e-6)
        self.assert_fails(2, "'mmx'", "compile", self.good, "--cpu", "mmx", "-o", self.path / "o")

    def test_trace_is_one_run(self):
        chain = self.save("chain", model(
            [helper.make_node("Softmax", ["x"], ["a"], axis=1),
             helper.make_node("MatMul", ["a", "a"], ["b"]), helper.make_node("CumSum", ["b", "k"], ["c"]),
             helper.make_node("MatMul", ["c", "a"], ["y"])],
            [("x", [64, 64])], [("y", [64, 64])], [helper.make_tensor("k", TensorProto.INT64, [], [0])]))
        done = heddle("profile", chain, "--iterations", 9, "--trace", self.path / "t.json")
        self.assertEqual(done.returncode, 0, done.stderr)
        events = json.loads((self.path / "t.json").read_text())["traceEvents"]
        kernels = [e for e in events if e["ph"] == "X"]
        self.assertGreater(len(kernels), 1)
        for one, next_one in zip(kernels, kernels[1:]):
            self.assertLessEqual(one["ts"] + one["dur"], next_one["ts"] + 1e-3)

    def test_verbs_that_need_the_graph(self):
        artefact = self.path / "a.heddle"
        heddle("compile", self.good, "-o", artefact)
        for verb in ("verify", "check", "compile"):
            self.assert_fails(2, "holds no graph; want the ONNX file", verb, artefact)
            self.assertNotIn("or compiled artefact", heddle(verb, "--help").stdout)

    def test_heddle_opt_reads_what_heddle_writes(self):
        rng = np.random.default_rng(1)
        path = self.save("two", model(
            [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Softmax", ["h"], ["s"]),
             helper.make_node("MatMul", ["s", "w"], ["y"])], [("x", [16, 16])], [("y", [16, 16])],
            [onnx.numpy_helper.from_array(rng.normal(size=(16, 16)).astype(np.float32), "w")]))
        opt = pathlib.Path(HEDDLE).with_name("heddle-opt")
        texts = []
        for level in ("prim", "kernel"):
            texts.append(self.path / f"two.{level}")
            self.assertEqual(heddle("compile", path, "--emit", level, "-o", texts[-1]).returncode, 0)
        self.assertGreater(texts[1].read_text().count("kernel \""), 1)
        dumps = self.path / "dumps"
        heddle("compile", path, "-o", self.path / "o", "--dump", "prim,kernel", "--dump-dir", dumps)
        texts += sorted(dumps.glob("*.txt"))
        self.assertGreater(len(texts), 4)
        for text in texts:
            done = subprocess.run([opt, text], capture_output=True, text=True, timeout=60)
            self.assertEqual(done.returncode, 0, f"{text}: {done.stderr}")
            want = text.read_text().strip()
            if "kernel" in text.name:
                self.assertEqual(done.stdout.strip(), want)
            else:  # values are numbered anew
                self.assertEqual(done.stdout.strip().count("\n"), want.count("\n"))

    def test_where_inputs_come_from(self):
        folder = self.path / "seeded"
        (folder / "test_data_set_0").mkdir(parents=True)
        (folder / "model.onnx").write_bytes(self.good.read_bytes())
        x = np.zeros((3, 37), np.float32)
        for name, value in (("input_0", x), ("output_0", x + np.float32(1 / 37))):
            (folder / "test_data_set_0" / f"{name}.pb").write_bytes(
                onnx.numpy_helper.from_array(value).SerializeToString())
        np.save(self.path / "x.npy", x)
        rows = [((folder,), "test_data_set_0", True),
                ((folder / "model.onnx", "--seed", 1), "random numbers of seed 1", False),
                ((self.good,), "random numbers of seed 0", False),
                ((folder, "--input", f"x={self.path}/x.npy"), "files", False)]
        means = []
        for flags, wanted, expected in rows:
            done = heddle("run", *flags, "--json")
            self.assertEqual(done.returncode, 0, done.stderr)
            reply = json.loads(done.stdout)
            self.assertEqual(reply["inputs"], wanted)
            self.assertEqual("expected" in reply["outputs"][0], expected)
            means.append(reply["outputs"][0]["mean"])
        self.assertNotEqual(means[1], means[2])
        self.assertIn("inputs: test_data_set_0", heddle("run", folder).stdout)

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

    def weighted(self):
        """y = softmax(x·w) with normalised x; weights of a size that storing halves."""
        w = np.random.default_rng(1).normal(size=(64, 300)).astype(np.float32)
        return self.save("weighted", model(
            [helper.make_node("LayerNormalization", ["x", "g"], ["n"], epsilon=1e-12, name="norm"),
             helper.make_node("MatMul", ["n", "w"], ["m"], name="product"),
             helper.make_node("Softmax", ["m"], ["y"], axis=1, name="soft")],
            [("x", [5, 64])], [("y", [5, 300])],
            [onnx.numpy_helper.from_array(np.ones(64, np.float32), "g"),
             onnx.numpy_helper.from_array(w, "w")]))

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
            if kind == "o":
                done = heddle("compile", path, "--emit", "obj", "-o", self.path / "my-model.o")
                self.assertEqual(done.returncode, 0, done.stderr)
            built = subprocess.run(["cc", "-Wall", "-Werror", "use.c", f"./my-model.{kind}", "-o", "use",
                                    "-lm", "-lpthread"], cwd=self.path, capture_output=True, text=True)
            self.assertEqual(built.returncode, 0, built.stderr)
            done = subprocess.run(["./use", "x.bin"], cwd=self.path, capture_output=True, timeout=60)
            self.assertEqual(done.returncode, 0)
            for y in np.frombuffer(done.stdout, np.float32).reshape(3, 5, 300):
                np.testing.assert_array_equal(y, wanted)  # the same code, for any number of threads

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
        self.assertIn("no C compiler", done.stderr)

    def test_no_budget_is_deterministic(self):
        plans = []
        for name in "ab":
            out = self.path / name
            self.assertEqual(heddle("compile", self.good, "--emit", "plan", "-o", out).returncode, 0)
            plans.append(out.read_text())
        self.assertEqual(*plans)

    def test_usage(self):
        self.assert_fails(2, "--threads", "run", self.good, "--threads", "many")
        self.assert_fails(2, "--budget", "compile", self.good, "-o", self.path / "o", "--budget", "soon")
        self.assert_fails(2, "--strategy", "run", self.good, "--strategy", "best")
        self.assert_fails(2, "want NAME=FILE", "run", self.good, "--input", "z=nothing.npy")
        self.assert_fails(1, "nowhere.onnx", "run", self.path / "nowhere.onnx")
        self.assert_fails(5, "--memory-limit", "run", self.good, "--memory-limit", "0.00001")

    def test_unsupported_names_node_op_and_reason(self):
        bad = self.save("bad", model([helper.make_node("Frobnicate", ["x"], ["y"], name="frob")],
                                     [("x", [2])], [("y", [2])]))
        self.assert_fails(3, "Frobnicate 'frob'", "run", bad)
        self.assert_fails(3, "1 of 1 nodes", "check", bad)

    def test_shape_mismatch_is_explained(self):
        bad = self.save("shapes", model([helper.make_node("Add", ["x", "x2"], ["y"], name="sum")],
                                        [("x", [2, 3]), ("x2", [4, 5])], [("y", [2, 3])]))
        self.assert_fails(1, "Add 'sum': input 1 has shape [4,5]", "run", bad)

    def test_wrong_expected_output(self):
        folder = self.path / "case"
        (folder / "test_data_set_0").mkdir(parents=True)
        (folder / "model.onnx").write_bytes(self.good.read_bytes())
        x = np.zeros((3, 37), np.float32)
        for name, value in (("input_0", x), ("output_0", x)):
            (folder / "test_data_set_0" / f"{name}.pb").write_bytes(
                onnx.numpy_helper.from_array(value).SerializeToString())
        self.assert_fails(4, "differ", "run", folder)

    def test_hopeless_models(self):
        whole = self.good.read_bytes()
        rows = {"truncated": whole[:len(whole) // 2], "empty": b"", "text": b"not a model\n" * 99}
        proto = model([helper.make_node("Exp", ["z"], ["y"], name="a"),
                       helper.make_node("Neg", ["y"], ["z"], name="b")], [("x", [2])], [("y", [2])])
        rows["cyclic"] = proto.SerializeToString()
        huge = model([helper.make_node("Expand", ["x", "s"], ["y"], name="e")], [("x", [1])],
                     [("y", None)],
                     [helper.make_tensor("s", TensorProto.INT64, [3], [1 << 20, 1 << 20, 1 << 20])])
        rows["huge"] = huge.SerializeToString()
        outside = model([helper.make_node("Add", ["x", "w"], ["y"])], [("x", [2])], [("y", [2])])
        w = outside.graph.initializer.add()
        w.name, w.data_type, w.data_location = "w", TensorProto.FLOAT, TensorProto.EXTERNAL
        w.dims.append(2)
        entry = w.external_data.add()
        entry.key, entry.value = "location", "../../../../etc/passwd"
        rows["outside"] = outside.SerializeToString()
        confused = model([helper.make_node("Add", ["x", "w"], ["y"])], [("x", [2])], [("y", [2])])
        w = confused.graph.initializer.add()
        w.name, w.data_type, w.raw_data = "w", TensorProto.INT64, b"12345"
        w.dims.append(2)
        rows["confused"] = confused.SerializeToString()
        for name, data in rows.items():
            path = self.path / f"{name}.onnx"
            path.write_bytes(data)
            for verb in ("run", "check"):
                done = heddle(verb, path, timeout=20)
                self.assertIn(done.returncode, (1, 3), f"{name}: {done.stdout}{done.stderr}")
                self.assertIn("error", done.stderr, name)
        artefact = self.path / "good.heddle"
        heddle("compile", self.good, "-o", artefact)
        data = bytearray(artefact.read_bytes())
        data[len(data) // 2] ^= 0xff
        artefact.write_bytes(data)
        self.assert_fails(1, "damaged", "run", artefact)


if __name__ == "__main__":
    unittest.main()
