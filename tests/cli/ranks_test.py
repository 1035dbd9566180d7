"""heddle train --distributed mpi: two processes on halves of each batch give the weights of one on all of it."""
import json
import os
import shutil
import subprocess
import unittest

import numpy as np
import onnx
import onnx.numpy_helper
from onnx import helper

from command import HEDDLE, CommandTest, heddle, model

MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--mca", "btl_vader_single_copy_mechanism", "none",
          "--mca", "btl", "self,vader"]


class RanksTest(CommandTest):
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
        self.whole, self.half, self.quarter = (self.save(f"batch{n}", network(n)) for n in (16, 8, 4))
        x = random.normal(size=(160, 7)).astype(np.float32)
        np.save(self.path / "x.npy", x)
        np.save(self.path / "y.npy", x[:, :3].argmax(1))

    def arguments(self, network, out, *more):
        return ["train", str(network), "--data", f"x={self.path}/x.npy", "--target", f"{self.path}/y.npy",
                "--threads", "1", "--lr", "0.01", "--optimizer", "momentum", "--epochs", "3", "--clip-norm", "1",
                "-o", str(self.path / out), "--json", *map(str, more)]

    def weights(self, out):
        proto = onnx.load(self.path / out)
        return {t.name: onnx.numpy_helper.to_array(t) for t in proto.graph.initializer}

    def one(self, network, out, *more):
        done = heddle(*self.arguments(network, out, *more))
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)["losses"], self.weights(out)

    def two(self, network, out, *more):
        done = subprocess.run([*MPIRUN, "-np", "2", HEDDLE, *self.arguments(network, out, "--distributed", "mpi", *more)],
                              capture_output=True, text=True, timeout=120,
                              env={**os.environ, "OMPI_MCA_rmaps_base_oversubscribe": "1"})
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)["losses"], self.weights(out)

    def assert_alike(self, found, want):
        np.testing.assert_allclose(found[0], want[0], rtol=1e-5)
        for name, value in want[1].items():
            np.testing.assert_allclose(found[1][name], value, rtol=1e-4, atol=1e-6, err_msg=name)

    def setUpClass():
        if shutil.which("mpirun") is None:
            raise RuntimeError("no mpirun: scripts/deps.sh installs it")

    def test_two_processes_are_one_with_twice_the_batch(self):
        want = self.one(self.whole, "one.onnx")
        self.assert_alike(self.two(self.half, "two.onnx"), want)
        self.assert_alike(self.two(self.quarter, "parts.onnx", "--accumulate", "2"), want)

    def test_explain_names_the_sums_and_both_programs(self):
        done = heddle("explain", str(self.half), "--train", "cross_entropy", "--distributed", "--threads", "1")
        self.assertEqual(done.returncode, 0, done.stderr)
        lines = done.stdout.splitlines()
        sums = [line.split() for line in lines if line.startswith("  all_reduce ")]
        self.assertEqual([(s[1], s[3]) for s in sums],
                         [("gradient:w1", "f32[7,65]"), ("gradient:b", "f32[65]"), ("gradient:w2", "f32[65,3]")])
        self.assertIn("the program before them:", lines)
        self.assertIn("the program after them:", lines)

    def test_explain_gives_both_programs_as_json(self):
        common = ["explain", str(self.half), "--train", "cross_entropy", "--distributed", "--threads", "1"]
        done = heddle(*common, "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        both = json.loads(done.stdout)
        self.assertEqual([s["name"] for s in both["sums"]], ["gradient:w1", "gradient:b", "gradient:w2"])
        for program in both["programs"].values():
            self.assertGreater(len(program["kernels"]), 0)
        before, after = (both["programs"][n] for n in ("before", "after"))
        summed = {s["name"] for s in both["sums"]}
        self.assertLessEqual(summed, {o["name"] for o in before["outputs"]})
        self.assertLessEqual(summed, {i["name"] for i in after["inputs"]})
        self.assert_fails(2, "--html", *common, "--html", self.path / "plan.html")

    def test_copies_that_share_nothing_are_said(self):
        def stderr(processes, *more):
            arguments = self.arguments(self.half, "copies.onnx", *more)
            at = arguments.index("-o")
            del arguments[at:at + 2]  # all would write it
            done = subprocess.run([*MPIRUN, "-np", processes, HEDDLE, *arguments], capture_output=True, text=True,
                                  timeout=120,
                                  env={**os.environ, "OMPI_MCA_rmaps_base_oversubscribe": "1"})
            self.assertEqual(done.returncode, 0, done.stderr)
            return done.stderr
        self.assertEqual(stderr("2").count("2 processes of mpirun and no --distributed"), 1)
        self.assertNotIn("mpirun", stderr("1"))
        self.assertNotIn("no --distributed", stderr("2", "--distributed", "mpi"))

    def test_dumps_show_the_step_of_both_programs(self):
        done = subprocess.run(
            [HEDDLE, "explain", str(self.half), "--train", "cross_entropy", "--distributed", "--threads", "1"],
            capture_output=True, text=True, timeout=60,
            env={**os.environ, "HEDDLE_DUMP": "prim", "HEDDLE_DUMP_DIR": str(self.path / "dump")})
        self.assertEqual(done.returncode, 0, done.stderr)
        step = (self.path / "dump" / "000-prim-step.txt").read_text()
        self.assertEqual(step.count(" = all_reduce "), 3)

    def test_a_process_alone_is_a_group_too(self):
        want = self.one(self.whole, "one.onnx")
        self.assert_alike(self.one(self.whole, "alone.onnx", "--distributed", "mpi"), want)

    def apart(self, first, second):
        """Two processes with arguments of their own, which have to end soon."""
        def process(more):
            arguments = self.arguments(self.half, "two.onnx", "--distributed", "mpi")
            if "--data" in more:
                at = arguments.index("--data")
                del arguments[at:at + 2]
            return ["-np", "1", HEDDLE, *arguments, *more]
        done = subprocess.run([*MPIRUN, *process(first), ":", *process(second)], capture_output=True, text=True,
                              timeout=20, env={**os.environ, "OMPI_MCA_rmaps_base_oversubscribe": "1"})
        self.assertNotEqual(done.returncode, 0)
        return done.stderr

    def test_an_error_of_one_process_ends_all(self):
        gone = self.path / "gone.npy"
        self.assertRegex(self.apart([], ["--data", f"x={gone}"]), "heddle: error: process 1: .*gone.npy")

    def test_processes_that_were_told_different_things(self):
        for flag, one, other in (("--stop-after", "3", "4"), ("--accumulate", "1", "2"), ("--seed", "1", "2")):
            self.assertIn(f"processes differ in {flag}: {one} in process 0, {other} in process 1",
                          self.apart([flag, one], [flag, other]))

    def test_processes_with_other_rates(self):
        for flag, one, other in (("--warmup", "0", "1"), ("--momentum", "0.8", "0.9")):
            self.assertIn("processes 0 and 1 differ in rate, schedule, momentum, betas",
                          self.apart([flag, one], [flag, other]))
        self.assertIn("processes differ in --in-order: 1 in process 0, 0 in process 1",
                      self.apart(["--in-order"], []))

    def test_plans_may_differ(self):
        """Gradients of one size are not mixed up where each process completes them in an order of its own."""
        random = np.random.default_rng(6)
        layers, names, weights, value = [], [], [], "x"
        for i in range(8):
            names.append(f"b{i}")
            weights += [onnx.numpy_helper.from_array((random.normal(size=(7, 7)) / 3).astype(np.float32), f"w{i}"),
                        onnx.numpy_helper.from_array(random.normal(size=7).astype(np.float32), f"b{i}")]
            layers += [helper.make_node("MatMul", [value, f"w{i}"], [f"m{i}"]),
                       helper.make_node("Add", [f"m{i}", f"b{i}"], [f"a{i}"]),
                       helper.make_node("Tanh", [f"a{i}"], [f"h{i}"])]
            value = f"h{i}"
        deep = self.save("deep", model(layers, [("x", [8, 7])], [(value, [8, 7])], weights))
        arguments = self.arguments(deep, "trained.onnx", "--distributed", "mpi", "--mode", "kernels")

        def train(first, second):
            command = [*MPIRUN, "-np", "1", HEDDLE, *arguments, *first, ":", "-np", "1", HEDDLE, *arguments, *second]
            done = subprocess.run(command, capture_output=True, text=True, timeout=120,
                                  env={**os.environ, "OMPI_MCA_rmaps_base_oversubscribe": "1"})
            self.assertEqual(done.returncode, 0, done.stderr)
            return json.loads(done.stdout)["losses"], self.weights("trained.onnx")
        want = train([], [])
        for other in ("single", "greedy", "operators"):
            self.assert_alike(train(["--strategy", other], []), want)

    def test_a_checkpoint_of_two_processes_is_not_one_s(self):
        saved = self.path / "half.safetensors"
        self.two(self.half, "first.onnx", "--checkpoint", saved, "--stop-after", "3")
        done = heddle(*self.arguments(self.half, "rest.onnx", "--checkpoint", saved, "--resume"))
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("1 batches a step, 2 processes, want ", done.stderr)

    def test_both_resume(self):
        want = self.two(self.half, "two.onnx")
        saved = self.path / "half.safetensors"
        self.two(self.half, "first.onnx", "--checkpoint", saved, "--stop-after", "11")
        rest = self.two(self.half, "rest.onnx", "--checkpoint", saved, "--resume")
        self.assertEqual(rest[0], want[0][11:])
        for name, value in want[1].items():
            np.testing.assert_array_equal(rest[1][name], value)


if __name__ == "__main__":
    unittest.main()
