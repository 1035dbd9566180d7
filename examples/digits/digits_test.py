"""The examples reach their accuracy, and their losses are PyTorch's: measured now where build/peers has torch, else as
recorded (torch_curve.py --record)."""
import json
import os
import pathlib
import subprocess
import tempfile
import unittest

import networks
import train

HEDDLE = os.environ["HEDDLE"]
HERE = pathlib.Path(__file__).resolve().parent
PEERS = HERE.parent.parent / "build/peers/bin/python"


def torch_losses(name, folder):
    if PEERS.exists() and subprocess.run([PEERS, "-c", "import torch"], capture_output=True).returncode == 0:
        done = subprocess.run([PEERS, HERE / "torch_curve.py", folder, name], capture_output=True, text=True, check=True)
        return json.loads(done.stdout)
    return json.loads((HERE / "curves.json").read_text())[name]


class DigitsTest(unittest.TestCase):
    def trained(self, name, *flags):
        with tempfile.TemporaryDirectory() as folder:
            os.environ["HEDDLE_CACHE_DIR"] = f"{folder}/cache"
            path = pathlib.Path(folder)
            losses, accuracy = train.train(name, path, HEDDLE, *flags)
            return losses, accuracy, torch_losses(name, path)

    def check(self, name):
        losses, accuracy, wanted = self.trained(name)
        self.assertEqual(len(losses), len(wanted))
        # Rounding differs and training amplifies it: nearly equal at first, alike over epochs.
        for found, want in zip(losses[:22], wanted[:22]):
            self.assertLess(abs(found - want), 1e-3 * (1 + want))
        for first in range(0, len(losses), 22):
            found, want = (sum(v[first:first + 22]) / 22 for v in (losses, wanted))
            self.assertLess(abs(found - want), 0.02 * want + 0.005, f"epoch {first // 22}")
        self.assertGreaterEqual(accuracy, networks.RECIPES[name]["accuracy"])

    def test_cnn(self):
        self.check("cnn")

    def test_transformer(self):
        self.check("transformer")

    def test_halves(self):
        for precision in ("bf16", "f16"):
            losses, accuracy, wanted = self.trained("cnn", "--precision", precision)
            found, want = (sum(v[-22:]) / 22 for v in (losses, wanted))
            self.assertLess(abs(found - want), 0.1 * want + 0.02, precision)
            self.assertGreaterEqual(accuracy, networks.RECIPES["cnn"]["accuracy"], precision)


if __name__ == "__main__":
    unittest.main()
