"""What gpu_acceptance.py makes of its time and of training steps, and its exit code."""
import json
import pathlib
import sys
import tempfile
import unittest
from unittest import mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import gpu_acceptance  # noqa: E402
import gpu_targets  # noqa: E402
import gpu_training  # noqa: E402

BOTH = ["torch", "torch-compile"]


def peer(ratio, agrees=True):
    return {"ratio": ratio, "median_ms": ratio, "difference": 1e-3, "agrees": agrees, "error": None}


def row(network="bert-base", compiled=None, eager=None):
    return {"model": network, "peers": {"torch-compile": compiled or peer(1.3), "torch": eager or peer(1.5)},
            "heddle": {"median_ms": 1.0}}


class Flags:
    peers, duration, scale = BOTH, 1, 1


class Now:
    def __init__(self, seconds):
        self.seconds = seconds

    def left(self):
        return self.seconds


class Time(unittest.TestCase):
    def test_something_is_kept_for_steps_behind(self):
        clocks = gpu_acceptance.clocks(540, gpu_acceptance.STEPS)
        self.assertEqual(list(clocks), gpu_acceptance.STEPS)
        # Whatever steps before it have taken, training begins with enough for one network at least.
        before = clocks["targets"].left()
        self.assertGreaterEqual(clocks["training"].left() - before, 180)
        self.assertGreaterEqual(clocks["monoliths"].left() - clocks["training"].left(), 50)
        self.assertAlmostEqual(clocks["benchmarks"].left(), 540, delta=1)
        self.assertLess(gpu_acceptance.STEPS.index("training"), gpu_acceptance.STEPS.index("benchmarks"))

    def test_a_step_alone_has_all(self):
        self.assertAlmostEqual(gpu_acceptance.clocks(540, ["training"])["training"].left(), 540, delta=1)

    def test_training_waits_for_no_benchmark(self):
        asked = []

        def run_step(step, result, models, arguments, clock):
            asked.append(step)
            result["training"] = [row(n) for n in gpu_training.NETWORKS] if step == "training" else result["training"]
        doctor = {"name": "H200", "doctor": {"optional": [{"name": "CUDA driver", "found": True, "detail": "a GPU"}]}}
        with tempfile.TemporaryDirectory() as folder, \
                mock.patch.multiple(gpu_acceptance, run_step=run_step, machine=lambda: doctor), \
                mock.patch.object(sys, "argv", ["gpu_acceptance", "--only", "benchmarks,training", "--out", folder]), \
                self.assertRaises(SystemExit) as left:
            gpu_acceptance.main()
        self.assertEqual(asked, ["training", "benchmarks"])
        self.assertEqual(left.exception.code, 0)

    def test_results_are_written_with_the_target(self):
        doctor = {"name": "H200", "doctor": {"optional": [{"name": "CUDA driver", "found": True, "detail": "a GPU"}]}}
        with tempfile.TemporaryDirectory() as folder:
            with mock.patch.multiple(gpu_acceptance, machine=lambda: doctor), \
                    mock.patch.multiple(gpu_training, step=lambda run, h, r, n, p, c, a: row(n, peer(1.2))), \
                    mock.patch.object(sys, "argv", ["gpu_acceptance", "--only", "training", "--out", folder]), \
                    self.assertRaises(SystemExit) as left:
                gpu_acceptance.main()
            self.assertEqual(left.exception.code, 0)  # as of any other target that is missed
            text = next(pathlib.Path(folder).glob("*.md")).read_text()
            targets = json.loads(next(pathlib.Path(folder).glob("*.json")).read_text())["targets"]
        self.assertIn("| bert-base | 1.000 | 1.500 (1.50×, losses differ by 1e-03) | ", text)
        self.assertIn("| training steps in bf16, over the better of PyTorch eager and torch.compile | ≥ 1.26 | 1.20 | "
                      "missed (3 of 3 measured) |", text)
        self.assertEqual([t["state"] for t in targets], ["unproven"] * 7 + ["missed"])
        self.assertIn("Tests on the device: not run (left out).", text)


class Training(unittest.TestCase):
    def state(self, *rows):
        return gpu_training.verdicts(rows)[0]["state"]

    def test_verdicts(self):
        names = list(gpu_training.NETWORKS)
        rows = [row(n) for n in names]
        self.assertEqual(self.state(*rows), "reached")
        self.assertEqual(self.state(row(names[0], peer(1.2)), *rows[1:]), "missed")
        self.assertEqual(self.state(row(names[0], eager=peer(1.2)), *rows[1:]), "missed")
        self.assertEqual(self.state(*rows[:2]), "unproven")
        self.assertEqual(self.state(*rows[:2], {"model": names[2], "error": "no time left"}), "unproven")
        self.assertEqual(self.state(), "unproven")

    def test_eager_alone_proves_nothing(self):
        names = list(gpu_training.NETWORKS)
        rows = [row(n, {"error": "longer than 240 s"}) for n in names]
        self.assertEqual(self.state(*rows), "unproven")
        self.assertIsNone(gpu_targets.best_ratio(rows[0]))

    def test_losses_have_to_agree(self):
        rows = [row(n, peer(2.0, agrees=False)) for n in gpu_training.NETWORKS]
        self.assertEqual(self.state(*rows), "unproven")
        self.assertEqual(gpu_training.disagreeing(rows), list(gpu_training.NETWORKS))
        self.assertIn("DISAGREE", gpu_training.markdown(rows, BOTH)[-1])
        good = {"tests": {"ok": True}, "conformance": {"ok": True}, "templates": {"ran": False}, "zoo": {}}
        self.assertEqual(gpu_acceptance.exit_code({**good, "training": rows}), 1)
        self.assertEqual(gpu_acceptance.exit_code({**good, "training": [row()]}), 0)
        self.assertEqual(gpu_acceptance.exit_code({**good, "training": [], "tests": {"ok": False}}), 1)

    def test_measuring(self):
        commands = []

        def run(command, seconds):
            commands.append([str(c) for c in command])
            bench = "bench" in commands[-1]
            return 0, json.dumps(row("a path", peer(1.4))) if bench else "", "", 0
        with tempfile.TemporaryDirectory() as folder:
            rows = gpu_training.measure(run, "heddle", pathlib.Path(folder), Now(500), Flags)
        self.assertEqual([r["model"] for r in rows], list(gpu_training.NETWORKS))
        self.assertEqual([r["best_peer_ratio"] for r in rows], [1.4] * 3)
        bench = commands[1]
        for flag, value in (("--train", "cross_entropy"), ("--precision", "bf16"), ("--vs", "torch,torch-compile")):
            self.assertEqual(bench[bench.index(flag) + 1], value)

    def test_what_is_not_measured_says_why(self):
        def run(command, seconds):
            return 1, "", "heddle: error: no room", 0
        root = pathlib.Path("nowhere")
        for clock, flags, why in ((Now(10), Flags, "no time left"), (Now(500), Flags, "heddle: error: no room"),
                                  (Now(500), mock.Mock(peers=["torch"]), "torch-compile is not among the peers")):
            rows = gpu_training.measure(run, "heddle", root, clock, flags)
            self.assertEqual([r["error"] for r in rows], [why] * 3)
            self.assertEqual(self.state(*rows), "unproven")


class Zoo(unittest.TestCase):
    def test_a_mean_of_some_rows_is_no_target(self):
        rows = [{"batch": 1, "best_peer_ratio": 2.0}, {"batch": 16, "best_peer_ratio": None}]
        self.assertEqual(gpu_acceptance.mean_over_peers({"rows": rows}), (2.0, 1, True))
        rows.append({"batch": 1, "best_peer_ratio": None})
        self.assertEqual(gpu_acceptance.mean_over_peers({"rows": rows}), (2.0, 1, False))


if __name__ == "__main__":
    unittest.main()
