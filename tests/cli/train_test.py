"""heddle train: what a model's dropout does, resuming, and being killed."""
import json
import re
import shutil
import signal
import subprocess
import time
import unittest

import numpy as np
import onnx
import onnx.numpy_helper
import onnxruntime
from onnx import TensorProto, helper

from command import HEDDLE, heddle, model
from training import TrainingTest


class TrainTest(TrainingTest):
    def test_masks_differ_from_step_to_step_and_follow_the_seed(self):
        still = ["--lr", "0", "--in-order", "--steps", "20"]  # ten batches, twice, nothing learnt
        losses = self.train(*still)["losses"]
        self.assertEqual(losses, self.train(*still)["losses"])
        self.assertNotEqual(losses[:10], losses[10:])
        self.assertNotEqual(losses, self.train(*still, "--seed", "1")["losses"])

    def test_resuming_gives_the_same_curve_to_the_bit(self):
        for more in ([], ["--precision", "f16", "--accumulate", "2"], ["--schedule", "cosine", "--optimizer", "nesterov"]):
            saved = self.path / f"half{len(more)}.safetensors"
            whole = self.train("--steps", 30, *more)
            self.train("--steps", 30, "--checkpoint", saved, "--save-every", 13, "--stop-after", 13, *more)
            rest = self.train("--steps", 30, "--checkpoint", saved, "--resume", *more)
            self.assertEqual(rest["losses"], whole["losses"][13:])

    def test_a_kill_loses_only_the_steps_since_the_checkpoint(self):
        steps, every = 40000, 50
        saved, killed = self.path / "killed.safetensors", 0
        flags = ["--steps", steps, "--save-every", every]
        end = time.monotonic() + 20
        command = [HEDDLE, *self.arguments("--json", "--resume", "--checkpoint", saved, *flags)]
        before = 0
        while killed < 4 and time.monotonic() < end:
            running = subprocess.Popen(command, stdout=subprocess.DEVNULL)
            stamp = saved.stat().st_mtime_ns if saved.exists() else 0
            while running.poll() is None and (not saved.exists() or saved.stat().st_mtime_ns == stamp):
                time.sleep(0.001)
            time.sleep(0.002 * killed)  # at another moment each time
            running.send_signal(signal.SIGKILL)
            running.wait()
            killed += 1
            shutil.copy(saved, self.path / "probe.safetensors")
            reached = self.train("--resume", "--checkpoint", self.path / "probe.safetensors", "--steps", steps,
                                 "--stop-after", 1)["steps"] - 1
            self.assertEqual(reached % every, 0)
            self.assertGreater(reached, before)
            before = reached
        self.assertEqual(killed, 4)
        straight = self.train("--steps", steps, "--stop-after", before + every)["losses"]
        resumed = self.train("--resume", "--checkpoint", saved, "--steps", steps, "--stop-after", every)["losses"]
        self.assertEqual(straight[before:], resumed)

    def test_the_trained_model_runs_in_onnx_runtime(self):
        out = self.path / "trained.onnx"
        self.train("--epochs", 60, "-o", out)
        session = onnxruntime.InferenceSession(out, providers=["CPUExecutionProvider"])
        right = [session.run(None, {"x": self.x[i:i + 8]})[0].argmax(1) == self.x[i:i + 8, :3].argmax(1)
                 for i in range(0, 80, 8)]
        self.assertGreater(np.mean(right), 0.9)

    def test_a_memory_limit_holds_or_is_an_error(self):
        whole = self.train("--steps", "5", "--memory-limit", "1")
        self.assertEqual(whole["losses"], self.train("--steps", "5")["losses"])
        self.assert_fails(5, "--memory-limit: no program was found that needs less than 0.0 MB", *self.arguments("--memory-limit", "0.001"))

    def test_a_library_of_a_transport_that_is_not_asked_for_is_refused(self):
        self.assert_fails(2, "--nccl: want --distributed nccl too", *self.arguments("--nccl", "libnccl.so.2"))

    def test_what_has_no_derivative_is_named(self):
        w = onnx.numpy_helper.from_array(np.ones((6, 3), np.float32), "w")
        index = onnx.numpy_helper.from_array(np.zeros((8, 3), np.int64), "index")
        self.network = self.save("product", model(
            [helper.make_node("MatMul", ["x", "w"], ["m"]),
             helper.make_node("ScatterElements", ["m", "index", "m"], ["y"], axis=1, reduction="mul", name="times")],
            [("x", [8, 6])], [("y", [8, 3])], [w, index]))
        self.assert_fails(3, "ScatterElements 'times'", *self.arguments())

    def test_dropout_inside_of_a_function_is_refused(self):
        w = onnx.numpy_helper.from_array(np.ones((6, 3), np.float32), "w")
        network = model([helper.make_node("MatMul", ["x", "w"], ["m"]),
                         helper.make_node("Thin", ["m"], ["y"], domain="own")], [("x", [8, 6])], [("y", [8, 3])], [w])
        network.functions.append(helper.make_function(
            "own", "Thin", ["a"], ["b"], [helper.make_node("Dropout", ["a"], ["b"], name="drop")],
            [helper.make_opsetid("", 18)]))
        network.opset_import.append(helper.make_opsetid("own", 1))
        self.network = self.save("function", network)
        self.assert_fails(3, "training of it inside of a function", *self.arguments())
        network.graph.node[1].CopyFrom(helper.make_node("Relu", ["m"], ["y"]))
        self.network = self.save("function", network)  # which nothing calls now
        self.train("--steps", 1)

    def test_what_cannot_be_learnt_is_said_before_or_at_the_first_step(self):
        np.save(self.path / "y.npy", np.full((80, 3), 0.5, np.float32) + np.eye(80, 3, dtype=np.float32))
        for loss in ("bce", "bce_logits"):
            self.assert_fails(1, "y.npy: sample 0: 1.5, want 0 to 1", *self.arguments("--loss", loss))
        np.save(self.path / "x.npy", np.full((80, 6), np.nan, np.float32))
        self.assert_fails(1, "the loss is nan: 'x' of this batch holds values that are not finite",
                          *self.arguments("--loss", "mse"))

    def test_derivatives_at_zero(self):
        for kind, derivative in (("Softplus", 0.5), ("Elu", 1), ("Celu", 1), ("Selu", 1.67326319 * 1.05070102),
                                 ("LeakyRelu", 0.01)):
            network = self.save(kind, model(
                [helper.make_node("Add", ["x", "b"], ["a"]), helper.make_node(kind, ["a"], ["s"]),
                 helper.make_node("ReduceSum", ["s"], ["y"], keepdims=0)],
                [("x", [8, 3])], [("y", [])], [onnx.numpy_helper.from_array(np.zeros(3, np.float32), "b")]))
            np.save(self.path / "zeros.npy", np.zeros((8, 3), np.float32))
            done = heddle("train", network, "--data", f"x={self.path}/zeros.npy", "--loss", "output", "--optimizer",
                          "sgd", "--lr", "1", "--steps", "1", "--threads", "1", "-o", self.path / "out.onnx")
            self.assertEqual(done.returncode, 0, done.stderr)
            (b,) = onnx.load(self.path / "out.onnx").graph.initializer
            np.testing.assert_allclose(onnx.numpy_helper.to_array(b), -8 * derivative, rtol=1e-5, err_msg=kind)

    def test_classes_out_of_range_are_named(self):
        for sample, found in ((17, 3), (5, -1)):
            classes = self.x[:, :3].argmax(1)
            classes[sample] = found
            np.save(self.path / "y.npy", classes)
            for loss in ("cross_entropy", "nll"):
                self.assert_fails(1, f"y.npy: sample {sample}: class {found}, want 0 to 2",
                                  *self.arguments("--loss", loss))

    def test_names_that_there_are_not(self):
        self.assert_fails(2, "--freeze: found 'w3', want floating initializers: ratio, w1, w2",
                          *self.arguments("--freeze", "w3"))
        for text in ("z=x.npy", "x.npy"):
            self.assert_fails(2, f"--data: found '{text}', want NAME=FILE with NAME one of: x",
                              *self.arguments("--data", text))
        self.assert_fails(2, "--data: found input 'x' twice, want one file",
                          *self.arguments("--data", f"x={self.path}/x.npy"))

    def test_adams_corrections_are_exact_with_betas_near_1(self):
        # The first step of Adam is the rate, whatever the betas: mean and variance are corrected to g and g².
        for beta in (0.9999999, 0.999999999):
            w2 = self.initializers(self.network)["w2"]
            self.train("--optimizer", "adam", "--beta1", beta, "--beta2", beta, "--epsilon", "1e-30", "--lr", "0.01",
                       "--steps", 1, "-o", self.path / "out.onnx")
            moved = np.abs(self.initializers(self.path / "out.onnx")["w2"] - w2)
            np.testing.assert_allclose(moved[moved > 0], 0.01, rtol=1e-3)
            self.assertGreater((moved > 0).mean(), 0.5)

    def test_nothing_left_to_do_is_said(self):
        saved = self.path / "done.safetensors"
        self.train("--steps", 3, "--checkpoint", saved)
        done = heddle(*self.arguments("--steps", "2", "--checkpoint", saved, "--resume"))
        self.assertIn("nothing is left to do: 3 of 2 steps are done", done.stdout)

    def test_running_statistics_cannot_be_frozen(self):
        ones = [onnx.numpy_helper.from_array(np.ones(6, np.float32), n) for n in ("scale", "bias", "mean", "var")]
        self.network = self.save("norm", model(
            [helper.make_node("BatchNormalization", ["x", "scale", "bias", "mean", "var"], ["y"])],
            [("x", [8, 6])], [("y", [8, 6])], ones))
        self.assert_fails(2, "'mean' is a running statistic", *self.arguments("--freeze", "mean"))
        self.assert_fails(2, "want floating initializers: bias, scale\n", *self.arguments("--freeze", "w"))

    def test_numbers_out_of_range_are_refused(self):
        for flag, *bad in (("--memory-limit", "0", "-1"), ("--ignore-index", "99999999999999999999", "1.5", "x"),
                           ("--learning-rate", "-1", "inf", "nan"), ("--beta1", "1", "-0.1"), ("--beta2", "1", "nan"),
                           ("--epsilon", "0"), ("--momentum", "-1"), ("--weight-decay", "-1", "inf"),
                           ("--clip-norm", "-1", "inf"), ("--loss-scale", "0"), ("--epochs", "0"), ("--steps", "-1"),
                           ("--accumulate", "0"), ("--save-every", "0"), ("--warmup", "-1")):
            for value in bad:
                done = heddle(*self.arguments(f"{flag}={value}"))
                self.assertEqual(done.returncode, 2, f"{flag}={value}: {done.stderr}")
                self.assertIn(flag, done.stderr)
                self.assertLess(len(done.stderr), 200)
        for verb in ("verify", "explain"):
            for rate in ("nan", "-1"):
                self.assert_fails(2, "--learning-rate", verb, self.network, "--train", "mse", f"--learning-rate={rate}")

    def test_what_holds_nan_is_not_written(self):
        # The root's slope at 0, in the third step, is infinite, and Adam divides it by itself; the loss is finite.
        out, saved = self.path / "nan.onnx", self.path / "nan.safetensors"
        network = self.save("power", model(
            [helper.make_node("Pow", ["w", "x"], ["p"]), helper.make_node("ReduceSum", ["p"], ["y"], keepdims=0)],
            [("x", [2])], [("y", [])], [onnx.numpy_helper.from_array(np.float32([0, 1]), "w")]))
        np.save(self.path / "x.npy", np.float32([2, 2, 2, 2, 0.5, 2]))
        done = heddle("train", network, "--data", f"x={self.path}/x.npy", "--loss", "output", "--optimizer", "adam", "--in-order",
                      "--lr", "0", "--threads", "1", "-o", out, "--checkpoint", saved, "--save-every", "1")
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertIn("after step 3: parameter 'w' holds NaN", done.stderr)
        self.assertFalse(out.exists())
        self.assertIn(b'"steps":"2"', saved.read_bytes()[:2000])

    def test_rows_that_there_are_not_are_named(self):
        table = onnx.numpy_helper.from_array(np.ones((9, 4), np.float32), "table")
        network = self.save("tokens", model([helper.make_node("Gather", ["table", "ids"], ["y"])],
                                            [("ids", [2, 3], TensorProto.INT64)], [("y", [2, 3, 4])], [table]))
        np.save(self.path / "t.npy", np.zeros((6, 3, 4), np.float32))
        for found, good in ((8, True), (-9, True), (9, False), (-10, False)):
            ids = np.zeros((6, 3), np.int64)
            ids[4, 1] = found
            np.save(self.path / "ids.npy", ids)
            arguments = ("train", network, "--data", f"ids={self.path}/ids.npy", "--target", self.path / "t.npy", "--loss", "mse",
                         "--threads", "1")
            if good:
                self.assertEqual(heddle(*arguments).returncode, 0)
            else:
                self.assert_fails(1, f"'ids': sample 4: found {found}, want a row of 9 (-9 to 8)", *arguments)

    def test_outputs_that_no_loss_is_of(self):
        network = self.save("top", model(
            [helper.make_node("MatMul", ["x", "w"], ["m"]), helper.make_node("ArgMax", ["m"], ["y"], axis=1)],
            [("x", [8, 6])], [("y", [8, 1], TensorProto.INT64)],
            [onnx.numpy_helper.from_array(np.ones((6, 3), np.float32), "w")]))
        for loss in ("cross_entropy", "bce", "kl", "mse", "nll"):
            self.assert_fails(1, f"loss {loss} of output 'y': its type is i64, want a floating one", "train", network,
                              "--data", f"x={self.path}/x.npy", "--target", f"{self.path}/y.npy", "--loss", loss)

    def test_skipped_steps_are_told(self):
        half = self.arguments("--precision", "f16", "--loss-scale", "1e30", "-o", self.path / "o.onnx")
        self.assert_fails(1, "all 4 steps were skipped", *half, "--steps", "4")
        self.assertFalse((self.path / "o.onnx").exists())
        done = heddle(*self.arguments("--precision", "f16", "--loss-scale", "1e8", "--steps", "30"))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"[1-9]\d* of 30 steps skipped: a gradient was infinite")

    def test_options_without_effect_are_refused(self):
        for flag, value, *more in (("--momentum", ".5"), ("--momentum", ".5", "--optimizer", "adam"),
                                   ("--beta1", ".5", "--optimizer", "sgd"), ("--loss-scale", "8")):
            self.assert_fails(2, f"{flag}: has no effect with --optimizer", *self.arguments(flag, value, *more))
        for seed in ("-1", "99999999999999999999999", "1.5"):
            self.assert_fails(2, "want a whole number from 0", *self.arguments(f"--seed={seed}"))

    def test_norms_that_share_running_statistics_update_them_in_turn(self):
        random = np.random.default_rng(8)
        ones = {n: onnx.numpy_helper.from_array(random.uniform(0.5, 1, 6).astype(np.float32), n)
                for n in ("scale", "bias", "mean", "var")}
        norm = ["scale", "bias", "mean", "var"]
        self.network = self.save("norms", model(
            [helper.make_node("BatchNormalization", ["x", *norm], ["n"], momentum=0.75),
             helper.make_node("Relu", ["n"], ["r"]),
             helper.make_node("BatchNormalization", ["r", *norm], ["y"], momentum=0.75)],
            [("x", [8, 6])], [("y", [8, 6])], list(ones.values())))
        np.save(self.path / "y.npy", self.x[:, :6].argmax(1))
        out = self.path / "norms-trained.onnx"
        self.train("--lr", "0", "--in-order", "--steps", "2", "--optimizer", "sgd", "-o", out)
        found, want = self.initializers(out), {n: onnx.numpy_helper.to_array(t) for n, t in ones.items()}
        mean, var = want["mean"], want["var"]
        for batch in (self.x[:8], self.x[8:16]):
            normal = (batch - batch.mean(0)) / np.sqrt(batch.var(0) + 1e-5) * want["scale"] + want["bias"]
            for v in (batch, np.maximum(normal, 0)):
                mean, var = 0.75 * mean + 0.25 * v.mean(0), 0.75 * var + 0.25 * v.var(0)
        np.testing.assert_allclose(found["mean"], mean, rtol=1e-5)
        np.testing.assert_allclose(found["var"], var, rtol=1e-5)

    def test_what_is_explained_and_verified_is_what_is_trained(self):
        for precision in ("f32", "bf16", "f16"):
            flags = ["--precision", precision, "--mode", "kernels", "--threads", "1", "--optimizer", "adam"]
            trained = heddle("train", self.network, "--data", f"x={self.path}/x.npy", "--target",
                             f"{self.path}/y.npy", "--loss", "cross_entropy", "--steps", "1", "-o",
                             self.path / "out.onnx", *flags)
            self.assertEqual(trained.returncode, 0, trained.stderr)
            kernels = int(re.search(r"(\d+) kernels a step", trained.stdout).group(1))
            explained = heddle("explain", self.network, "--train", "cross_entropy", "--json", *flags)
            self.assertEqual(len(json.loads(explained.stdout)["kernels"]), kernels, precision)
            verified = heddle("verify", self.network, "--train", "cross_entropy", *flags)
            self.assertEqual(verified.returncode, 0, verified.stdout + verified.stderr)

    def test_what_is_exported_is_for_inference(self):
        random = np.random.default_rng(9)

        def vector(name, *shape):
            return onnx.numpy_helper.from_array(random.uniform(0.5, 1, shape).astype(np.float32), name)
        self.network = self.save("written-for-training", model(
            [helper.make_node("BatchNormalization", ["x", "scale", "bias", "mean", "var"], ["n", "m2", "v2"],
                              training_mode=1),
             helper.make_node("Dropout", ["n", "ratio", "on"], ["d"]), helper.make_node("MatMul", ["d", "w"], ["y"])],
            [("x", [8, 6])], [("y", [8, 3]), ("m2", [6])],
            [vector("scale", 6), vector("bias", 6), vector("mean", 6), vector("var", 6), vector("w", 6, 3),
             onnx.numpy_helper.from_array(np.float32(0.5), "ratio"),
             onnx.numpy_helper.from_array(np.array(True), "on")]))
        out = self.path / "inference.onnx"
        self.train("--steps", "3", "-o", out)
        onnx.checker.check_model(onnx.load(out))
        w = self.initializers(out)
        session = onnxruntime.InferenceSession(out, providers=["CPUExecutionProvider"])
        found, mean = session.run(None, {"x": self.x[:8]})
        np.testing.assert_array_equal(mean, w["mean"])
        normal = (self.x[:8] - w["mean"]) / np.sqrt(w["var"] + 1e-5) * w["scale"] + w["bias"]
        np.testing.assert_allclose(found, normal @ w["w"], rtol=1e-4, atol=1e-5)

    def test_weights_of_16_bits_are_trained_in_32(self):
        random, halves, wide = np.random.default_rng(3), {}, {}
        for name, shape in (("w1", (6, 32)), ("b", (32,)), ("w2", (32, 3))):
            halves[name] = (random.normal(size=shape) / shape[0] ** 0.5).astype(np.float16)
            wide[name] = halves[name].astype(np.float32)

        def network(weights, kind):
            return model([helper.make_node("Cast", ["x"], ["x16"], to=kind),
                          helper.make_node("MatMul", ["x16", "w1"], ["m"]), helper.make_node("Add", ["m", "b"], ["a"]),
                          helper.make_node("Relu", ["a"], ["h"]), helper.make_node("MatMul", ["h", "w2"], ["y16"]),
                          helper.make_node("Cast", ["y16"], ["y"], to=onnx.TensorProto.FLOAT)],
                         [("x", [8, 6])], [("y", [8, 3])],
                         [onnx.numpy_helper.from_array(v, n) for n, v in weights.items()])
        losses, out = {}, self.path / "halves-trained.onnx"
        for name, weights, kind in (("wide", wide, onnx.TensorProto.FLOAT), ("halves", halves, onnx.TensorProto.FLOAT16)):
            self.network = self.save(name, network(weights, kind))
            # Steps so small that no weight of 16 bits would move in one of them.
            losses[name] = self.train("--epochs", "40", "--optimizer", "adamw", "--lr", "1e-4", "-o", out)["losses"]
        np.testing.assert_allclose(losses["halves"], losses["wide"], rtol=1e-2)
        self.assertLess(np.mean(losses["halves"][-10:]), 0.97 * np.mean(losses["halves"][:10]))
        for name, value in self.initializers(out).items():
            self.assertEqual(value.dtype, np.float16)
            self.assertFalse(np.array_equal(value, halves[name]))

    def test_gradients_in_f64_are_limited_in_f64(self):
        big = onnx.numpy_helper.from_array(np.full((6, 3), 1e20), "w")
        network = self.save("big", model(
            [helper.make_node("MatMul", ["x", "w"], ["y"])], [("x", [8, 6], TensorProto.DOUBLE)],
            [("y", [8, 3], TensorProto.DOUBLE)], [big]))
        np.save(self.path / "x64.npy", self.x.astype(np.float64))
        np.save(self.path / "t64.npy", np.zeros((80, 3)))
        done = heddle("train", network, "--data", f"x={self.path}/x64.npy", "--target", f"{self.path}/t64.npy", "--loss", "mse",
                      "--optimizer", "sgd", "--lr", "1e19", "--clip-norm", "1", "--steps", "1", "--threads", "1", "-o",
                      self.path / "limited.onnx")
        self.assertEqual(done.returncode, 0, done.stderr)
        moved = self.initializers(self.path / "limited.onnx")["w"] - 1e20
        self.assertAlmostEqual(np.sqrt(np.sum((moved / 1e19) ** 2)), 1, places=6)

    def test_one_number_taken_out_of_a_tensor(self):
        """The gradient of a row of indices is one number, scattered."""
        network = self.save("one", model(
            [helper.make_node("Mul", ["x", "w"], ["m"]), helper.make_node("GatherND", ["m", "at"], ["y"])],
            [("x", [3, 4])], [("y", [])],
            [onnx.numpy_helper.from_array(np.ones((3, 4), np.float32), "w"),
             onnx.numpy_helper.from_array(np.int64([1, 2]), "at")]))
        np.save(self.path / "x.npy", np.arange(12, dtype=np.float32).reshape(3, 4))
        done = heddle("train", network, "--data", f"x={self.path}/x.npy", "--loss", "output", "--optimizer", "sgd", "--lr", "0.5",
                      "--threads", "1", "-o", self.path / "one-trained.onnx")
        self.assertEqual(done.returncode, 0, done.stderr)
        wanted = np.ones((3, 4), np.float32)
        wanted[1, 2] -= 0.5 * 6
        np.testing.assert_array_equal(self.initializers(self.path / "one-trained.onnx")["w"], wanted)

    def test_half_precision_of_doubles_is_warned_of(self):
        wide = onnx.numpy_helper.from_array(np.ones((6, 3)), "w")
        self.network = self.save("wide", model(
            [helper.make_node("MatMul", ["x", "w"], ["y"])], [("x", [8, 6], TensorProto.DOUBLE)],
            [("y", [8, 3], TensorProto.DOUBLE)], [wide]))
        np.save(self.path / "x.npy", self.x.astype(np.float64))
        done = heddle(*self.arguments("--precision", "bf16"))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("--precision bf16: has no effect on a model in f64", done.stderr)

    def test_errors(self):
        self.assert_fails(2, "unknown loss", *self.arguments("--loss", "huber"))
        self.assert_fails(2, "unknown optimizer", *self.arguments("--optimizer", "lion"))
        self.assert_fails(1, "want one number", *self.arguments("--loss", "output"))
        self.assert_fails(1, "want at least one step of 11 batches", *self.arguments("--accumulate", "11"))


if __name__ == "__main__":
    unittest.main()
