"""Operators of the standard on random tensors where onnx's own cases do not look, against numpy, onnx's
reference evaluator or ONNX Runtime."""
import unittest

import numpy as np

from one_operator import OperatorTest


class Standard(OperatorTest):
    def same(self, *arguments, **more):
        self.agrees(*arguments, domain="", **more)

    def test_transforms_of_prime_lengths(self):
        """2 · 4099 and 9001 are too long for a matrix and do not divide well."""
        for n in (4099, 2 * 4099, 9001):
            x = self.normal(2, n, 2)
            z = x[..., 0].astype(np.float64) + 1j * x[..., 1]
            both = lambda y: [np.stack([y.real, y.imag], -1).astype(np.float32)]
            self.same("DFT", [x], want=both(np.fft.fft(z)), close=1e-6)
            self.same("DFT", [x], want=both(np.fft.ifft(z)), close=1e-6, inverse=1)
            half = both(np.fft.rfft(x[..., 0]))[0]
            self.same("DFT", [x[..., :1]], want=[half], close=1e-6, onesided=1)
            self.same("DFT", [half, np.array(n)], constants=[1], want=[x[..., :1]], close=1e-6,
                      inverse=1, onesided=1)

    def test_frames_of_prime_length(self):
        x, n, step = self.normal(1, 12000, 1), 4099, 3000
        frames = [np.fft.rfft(x[0, at:at + n, 0]) for at in range(0, 12000 - n + 1, step)]
        want = np.stack([[f.real, f.imag] for f in frames]).transpose(0, 2, 1)[None]
        self.same("STFT", [x, np.array(step), None, np.array(n)], constants=[1, 3],
                  want=[want.astype(np.float32)], close=1e-6)


if __name__ == "__main__":
    unittest.main()
