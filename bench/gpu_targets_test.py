"""What gpu_targets.py says is reached, missed or unproven, and the models that it makes."""
import pathlib
import sys
import tempfile
import unittest

import onnx

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import gpu_targets  # noqa: E402


def found(shares, over, scale=1):
    products = [{"precision": "bf16", "epilogue": e, "over_cublaslt": o} for e, o in zip(("", "bias gelu"), over)]
    return {"scale": scale, "memory_bound": [{"share_of_copy": s} for s in shares], "products": products}


class Targets(unittest.TestCase):
    def states(self, *arguments, mean=1.31, **how):
        return [t["state"] for t in gpu_targets.verdicts(found(*arguments, **how), mean)]

    def test_the_least_counts(self):
        self.assertEqual(self.states([0.9, 0.86], [0.85, 1.0]), ["reached"] * 4)
        self.assertEqual(self.states([0.9, 0.84], [0.84, 0.99], mean=1.29), ["missed"] * 4)

    def test_what_was_not_measured_is_unproven(self):
        self.assertEqual(self.states([0.9, None], [None, None], mean=None), ["unproven"] * 4)
        self.assertEqual(self.states([0.1], [0.1, 0.1], scale=64)[:3], ["unproven"] * 3)

    def test_reasons(self):
        self.assertEqual(gpu_targets.reason("--precision: tf32 not in {f32}\nRun with --help"),
                         "skipped: --precision: tf32 not in {f32}")
        self.assertEqual(gpu_targets.reason("a\nheddle: error: b\nc"), "heddle: error: b")

    def test_models_are_sound(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "m.onnx"
            for make, precision, shape in gpu_targets.MEMORY_BOUND:
                small = [s // 256 for s in shape]
                self.assertGreater(gpu_targets.memory_bound(path, make, precision, small), 0)
                onnx.checker.check_model(onnx.load(path), full_check=True)
            for precision, m, n, k, after in gpu_targets.PRODUCTS:
                onnx.checker.check_model(
                    onnx.load(gpu_targets.product(path, precision, m // 64, n // 64, k // 64, after)), full_check=True)


if __name__ == "__main__":
    unittest.main()
