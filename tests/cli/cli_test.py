"""The command as a user meets it: exit codes, messages, JSON, on good and on hopeless input."""
import json
import os
import pathlib
import subprocess
import sys
import time
import unittest

import numpy as np
import onnx
import onnx.numpy_helper
from onnx import TensorProto, helper

from command import HEDDLE, CommandTest, heddle, model


class Cli(CommandTest):
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

    def test_threads_are_those_that_the_process_may_run_on(self):
        def threads(*before):
            done = subprocess.run([*before, HEDDLE, "doctor", "--json"], capture_output=True, text=True, timeout=60)
            return json.loads(done.stdout)["cpu"]["threads"]
        mine = os.sched_getaffinity(0)
        self.assertEqual(threads(), len(mine))
        one = ["taskset", "-c", str(max(mine))]
        self.assertEqual(threads(*one), 1)
        done = subprocess.run([*one, HEDDLE, "bench", self.good, "--duration", "0.02", "--json"], capture_output=True,
                              text=True, timeout=60)
        self.assertEqual(json.loads(done.stdout)["threads"], 1)

    def test_a_ring_that_nothing_has_is_said(self):
        for value in ("off", "4096"):
            done = heddle("run", self.good, "--ring", value)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(done.stderr.count(f"warning: --ring {value}: without effect: --device cpu has none"), 1)
        heddle("compile", self.good, "-o", self.path / "good.heddle")
        self.assertIn("found an artefact", heddle("run", self.path / "good.heddle", "--ring", "off").stderr)
        self.assertNotIn("ring", heddle("run", self.good).stderr)

    def test_a_page_and_json_at_once(self):
        done = heddle("explain", self.good, "--json", "--html", self.path / "plan.html")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("kernels", json.loads(done.stdout))
        self.assertIn("<html", (self.path / "plan.html").read_text())

    def test_bench_waits_to_start(self):
        go = self.path / "go"
        command = [HEDDLE, "bench", self.good, "--duration", "0.02", "--start-when", str(go), "--json"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as bench:
            while not go.with_name("go.ready").exists():
                self.assertIsNone(bench.poll())
                time.sleep(0.01)
            with self.assertRaises(subprocess.TimeoutExpired):
                bench.wait(0.5)
            go.touch()
            self.assertIn("median_ms", json.loads(bench.communicate(timeout=60)[0])["heddle"])

    def test_profile_says_how_the_program_runs(self):
        for mode in ("kernels", "monolith"):
            report = json.loads(heddle("profile", self.good, "--mode", mode, "--json").stdout)
            self.assertTrue(report["mode"].startswith(mode), report["mode"])
            self.assertEqual(report["timed"], "one after another")
            self.assertGreater(report["run_us"], 0)
            text = heddle("profile", self.good, "--mode", mode).stdout
            self.assertRegex(text, rf"kernels one after another, .* whole runs as {mode}")

    def test_roofline(self):
        done = heddle("profile", self.good, "--roofline", "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        report = json.loads(done.stdout)
        rows = report["kernels"]
        self.assertAlmostEqual(report["floor_us"], sum(k["floor_us"] for k in rows))
        for bound in ("compute", "memory", "functions"):
            here = [k for k in rows if k["bound"] == bound]
            below = [k for k in here if k["of_roofline"] < 0.85]
            self.assertEqual((report[bound]["kernels"], report[bound]["below"]), (len(here), len(below)))
            self.assertAlmostEqual(report[bound]["below_us"], sum(k["us"] for k in below))
            self.assertAlmostEqual(report[bound]["below_as_written_us"],
                                   sum(k["us"] for k in below if k["as_written"] < 0.85))
        self.assertEqual(sum(report[b]["kernels"] for b in ("compute", "memory", "functions")), len(rows))
        self.assertAlmostEqual(report["of_roofline"], report["floor_us"] / report["run_us"])
        self.assertIn("of the whole run", heddle("profile", self.good, "--roofline").stdout)
        # The peak is that of the instructions for the types that are multiplied.
        plans = {low: json.loads(heddle("explain", self.weighted(), "--precision", low, "--json").stdout)
                 for low in ("f32", "bf16")}
        for low, plan in plans.items():
            self.assertIn(low, [k["multiplies"] for k in plan["kernels"]])

    def test_no_element_hangs_on_its_neighbours(self):
        """Sines of large numbers are another routine's, those beside them are not."""
        for op in ("Sin", "Cos"):
            network = self.save(op, model([helper.make_node(op, ["x"], ["y"])], [("x", [3, 37])], [("y", [3, 37])]))
            x = np.random.default_rng(2).normal(size=(3, 37)).astype(np.float32) * 50
            found = []
            for far in (False, True):
                given = x.copy()
                if far:
                    given[:, ::5] = 1e6
                done = heddle("run", network, *self.given({"x": given}), "--save", self.path / "y.npy")
                self.assertEqual(done.returncode, 0, done.stderr)
                found.append(np.load(self.path / "y.npy"))
            near = np.arange(37) % 5 != 0
            np.testing.assert_array_equal(found[0][:, near], found[1][:, near])
            np.testing.assert_allclose(found[1][:, ::5], getattr(np, op.lower())(1e6), atol=1e-6)

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

    def test_damaged_tuning_database(self):
        database = self.path / "cache" / "tuning.db"
        database.parent.mkdir()
        database.write_bytes(b"x" * 5000)
        self.assert_fails(1, "delete it", "compile", self.good, "-o", self.path / "o", "--budget", "1",
                          "--locked", database)
        done = heddle("compile", self.good, "-o", self.path / "o", "--budget", "1")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("tuning.db: damaged, kept as", done.stderr)
        self.assertEqual((database.parent / "tuning.db.damaged").read_bytes(), b"x" * 5000)
        self.assertNotIn("damaged", heddle("cache", "verify").stderr)

    def test_cache_limit(self):
        for limit, code in (("-5", 2), ("99999999999999", 2), ("1", 0)):
            done = subprocess.run([HEDDLE, "doctor"], capture_output=True, text=True,
                                  env=dict(os.environ, HEDDLE_CACHE_LIMIT=limit))
            self.assertEqual(done.returncode, code, done.stderr)
            if code:
                self.assertIn("HEDDLE_CACHE_LIMIT", done.stderr)
                self.assertIn(f"found '{limit}'", done.stderr)

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

    def test_concatenations_in_place(self):
        rng = np.random.default_rng(3)
        weights = [onnx.numpy_helper.from_array(rng.normal(size=(32, c, 3, 3)).astype(np.float32), name)
                   for c, name in ((16, "a"), (32, "b"), (64, "c"))]
        nodes = [helper.make_node("Conv", ["x", "a"], ["p"], "first", pads=[1] * 4),
                 helper.make_node("Relu", ["p"], ["skip"]),
                 helper.make_node("Conv", ["skip", "b"], ["low"], "second", pads=[1] * 4),
                 helper.make_node("Concat", ["skip", "low"], ["both"], "join", axis=1),
                 helper.make_node("Conv", ["both", "c"], ["y"], "third", pads=[1] * 4)]
        path = self.save("skip", model(nodes, [("x", [1, 16, 20, 24])], [("y", [1, 32, 20, 24])], weights))
        self.assertIn("in place: 1 concatenation stored part by part", heddle("explain", path).stdout)
        self.assertRegex(heddle("explain", path, "--node", "join").stdout,
                         "in place: 'join' has no kernel, .* by #0 #1")
        heddle("explain", path, "--html", self.path / "skip.html")
        self.assertIn("1 concatenation stored", (self.path / "skip.html").read_text())
        self.assertEqual(heddle("verify", path).returncode, 0)

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

    def test_modes_are_plain(self):
        self.assertIn("monolith:tuned", heddle("run", "--help").stdout)
        for mode in ("monolith:grain=0x10", "monolith:grain= 4", "monolith:whole=inf"):
            self.assert_fails(2, mode[9:], "run", self.good, "--mode", mode)
        self.assert_fails(2, "found 'monolith:'", "run", self.good, "--mode", "monolith:")

    def test_trace_is_one_run(self):
        chain = self.save("chain", model(
            [helper.make_node("Softmax", ["x"], ["a"], axis=1),
             helper.make_node("MatMul", ["a", "a"], ["b"]), helper.make_node("CumSum", ["b", "k"], ["c"]),
             helper.make_node("MatMul", ["c", "a"], ["y"])],
            [("x", [512, 512])], [("y", [512, 512])], [helper.make_tensor("k", TensorProto.INT64, [], [0])]))
        explained = json.loads(heddle("explain", chain, "--threads", 2, "--mode", "kernels",
                                      "--json").stdout)["kernels"]
        for mode in ("kernels", "monolith:grain=1", "monolith:barriers"):
            done = heddle("profile", chain, "--iterations", 50, "--trace", self.path / "t.json",
                          "--threads", 2, "--mode", mode)
            self.assertEqual(done.returncode, 0, done.stderr)
            events = json.loads((self.path / "t.json").read_text())["traceEvents"]
            slices = [e for e in events if e["ph"] == "X"]
            self.assertEqual({e["args"]["name"] for e in events if e["name"] == "thread_name"},
                             {"thread 0", "thread 1"})
            for thread in (0, 1):
                row = [e for e in slices if e["tid"] == thread]
                for one, next_one in zip(row, row[1:]):
                    self.assertLessEqual(one["ts"] + one["dur"], next_one["ts"] + 1e-3)
            kernels = [e for e in slices if e["name"] != "wait"]
            self.assertEqual({e["args"]["kernel"] for e in kernels}, set(range(len(explained))))
            for e in kernels:
                kernel = explained[e["args"]["kernel"]]
                self.assertEqual(e["name"], f"{e['args']['kernel']} {kernel['name']}")
                self.assertEqual(e["args"]["covers"], " + ".join(s["op"] for s in kernel["sources"]))
            # Only items that wait have waits: kernel by kernel none, and none of the first kernel.
            waiting = {e["args"]["kernel"] for e in slices if e["name"] == "wait"}
            self.assertNotIn(0, waiting)
            self.assertEqual(waiting == set(), mode == "kernels")

    def test_verbs_that_need_the_graph(self):
        artefact = self.path / "a.heddle"
        heddle("compile", self.good, "-o", artefact)
        self.assert_fails(5, "--memory-limit", "explain", artefact, "--memory-limit", "0.00001")
        for flag, value in (("--mode", "monolith"), ("--budget", "1"), ("--strategy", "greedy"),
                            ("--locked", self.path / "lock"), ("--precision", "bf16")):
            self.assert_fails(2, f"{flag}: found", "run", artefact, flag, value)
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
        damaged = self.path / "damaged.onnx"
        damaged.write_bytes(b"\x08\x09nothing")
        self.assert_fails(1, "damaged.onnx: not an ONNX model", "run", damaged)
        self.assert_fails(5, "--memory-limit", "run", self.good, "--memory-limit", "0.00001")

    def test_unsupported_names_node_op_and_reason(self):
        bad = self.save("bad", model([helper.make_node("Frobnicate", ["x"], ["y"], name="frob")],
                                     [("x", [2])], [("y", [2])]))
        self.assert_fails(3, "Frobnicate 'frob'", "run", bad)
        self.assert_fails(3, "problems: 1, nodes looked at: 1", "check", bad)

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

    def test_pipes_are_not_waited_for(self):
        pipe = self.path / "pipe"
        os.mkfifo(pipe)
        self.assert_fails(1, "not a regular file", "run", pipe)
        self.assert_fails(1, "not a regular file", "run", self.good, "--input", f"x={pipe}")

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
        # Zeros may be what sections are padded with, which nothing reads.
        data[next(i for i in range(len(data) // 2, len(data)) if data[i])] ^= 0xff
        artefact.write_bytes(data)
        self.assert_fails(1, "damaged", "run", artefact)


class Extents(CommandTest):
    def test_errors_say_what_gives_them(self):
        nodes = [helper.make_node("Relu", ["x"], ["y"])]
        symbolic = self.save("symbolic", model(nodes, [("x", ["N", 3])], [("y", ["N", 3])]))
        for part in ("'N'", "--shape x=", "--dynamic N=", "--as-given"):
            self.assert_fails(3, part, "compile", symbolic, "-o", self.path / "o")
        items = helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, None)
        graph = helper.make_graph(
            [helper.make_node("SequenceLength", ["s"], ["n"])], "g", [items],
            [helper.make_tensor_value_info("n", TensorProto.INT64, [])])
        sequence = self.save("sequence", helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", 18)]))
        for part in ("it is a sequence", "--as-given --input s=FILE.pb"):
            self.assert_fails(3, part, "compile", sequence, "-o", self.path / "o")


if __name__ == "__main__":
    unittest.main()
