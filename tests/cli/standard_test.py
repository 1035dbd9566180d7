"""Operators of the standard on random tensors where onnx's own cases do not look, against numpy, onnx's
reference evaluator or ONNX Runtime."""
import unittest

import numpy as np
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from one_operator import OperatorTest, heddle, model_of


def to_bf16(x):
    """The nearest number of a bf16, half to even, as f32."""
    bits = x.astype(np.float32).view(np.uint32)
    return ((bits + 0x7fff + (bits >> 16 & 1)) & np.uint32(0xffff0000)).view(np.float32)


class Standard(OperatorTest):
    def same(self, *arguments, **more):
        self.agrees(*arguments, domain="", **more)

    def test_transforms_of_prime_lengths(self):
        """2 · 4099 and 9001 are too long for a matrix and do not divide well. Products by halves err by more
        than as written, within what the accuracy says."""
        for n in (4099, 2 * 4099, 9001):
            x = self.normal(2, n, 2)
            z = x[..., 0].astype(np.float64) + 1j * x[..., 1]
            both = lambda y: [np.stack([y.real, y.imag], -1).astype(np.float32)]
            self.same("DFT", [x], want=both(np.fft.fft(z)), close=4e-6)
            self.same("DFT", [x], want=both(np.fft.ifft(z)), close=4e-6, inverse=1)
            half = both(np.fft.rfft(x[..., 0]))[0]
            self.same("DFT", [x[..., :1]], want=[half], close=4e-6, onesided=1)
            self.same("DFT", [half, np.array(n)], constants=[1], want=[x[..., :1]], close=4e-6,
                      inverse=1, onesided=1)

    def test_frames_of_prime_length(self):
        x, n, step = self.normal(1, 12000, 1), 4099, 3000
        frames = [np.fft.rfft(x[0, at:at + n, 0]) for at in range(0, 12000 - n + 1, step)]
        want = np.stack([[f.real, f.imag] for f in frames]).transpose(0, 2, 1)[None]
        self.same("STFT", [x, np.array(step), None, np.array(n)], constants=[1, 3],
                  want=[want.astype(np.float32)], close=4e-6)

    def test_integers_resized_are_rounded(self):
        """As in onnx's reference evaluator; ONNX Runtime cuts fractions off."""
        for dtype in (np.uint8, np.int8, np.int32):
            x = self.numbers(dtype, 1, 2, 6, 5)
            for mode in ("linear", "cubic"):
                for scales in ((2, 2), (4, 0.5), (0.5, 2)):  # weights are exact
                    inputs = [x, None, np.array((1, 1) + scales, np.float32)]
                    more = {"mode": mode, "coordinate_transformation_mode": "half_pixel"}
                    model, feeds = model_of("Resize", inputs, more, 1, "", 19, [2])
                    self.same("Resize", inputs, constants=[2], opset=19,
                              want=ReferenceEvaluator(model).run(None, feeds), **more)

    def test_grid_with_nan(self):
        x, grid = self.normal(1, 2, 4, 5), self.uniform(-1.2, 1.2, 1, 3, 3, 2)
        grid[0, 0, 0, 0] = grid[0, 1, 1, 1] = grid[0, 2, 2] = np.nan
        for mode in ("linear", "nearest", "cubic"):
            for padding in ("zeros", "border", "reflection"):
                for align in (0, 1):
                    self.same("GridSample", [x, grid], opset=20, mode=mode, padding_mode=padding,
                              align_corners=align)

    def test_grid_without_end(self):
        """What is infinitely far off is outside."""
        x = self.normal(1, 1, 4, 5)
        far = np.array([np.inf, -np.inf, 3e38, -1e30], np.float32)
        grid = np.stack([far, np.zeros(4, np.float32)], -1)[None, None]
        self.same("GridSample", [x, grid], opset=20, want=[np.zeros((1, 1, 1, 4), np.float32)])
        edge = x[0, 0, 1:3].mean(0)[[4, 0, 4, 0]][None, None, None]
        self.same("GridSample", [x, grid], opset=20, want=[edge], padding_mode="border")

    def outcome(self, nodes, kinds, result, **feeds):
        """y of a model of several nodes; `kinds`: the inputs' types by name."""
        ports = [helper.make_tensor_value_info(n, kinds[n], x.shape) for n, x in feeds.items()]
        y = helper.make_tensor_value_info("y", result, next(iter(feeds.values())).shape)
        model = helper.make_model(
            helper.make_graph([helper.make_node(op, ins, outs, **more)
                               for op, ins, outs, more in nodes], "g", ports, [y]),
            opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
        return heddle.InferenceSession(model).run(None, feeds)[0]

    def test_casts_to_16_bits_round_inside_a_kernel(self):
        """As numpy rounds: to infinity, to zero, to denormals, half to even."""
        edges = [7e4, 65519, 65520, -7e4, 1e-9, -1e-9, 2**-24, 3 * 2**-25, 3.3, 2049, 2051, 3.4e38,
                 np.inf, np.nan, 0.1]
        x = np.array(edges + list(self.normal(500) * 100), np.float32)
        with np.errstate(over="ignore"):
            half = x.astype(np.float16).astype(np.float32)
        whole = np.array([4097, -4099, 65519, 65520, 257, 100000, 3], np.int32)
        with np.errstate(over="ignore"):
            wholes = whole.astype(np.float16).astype(np.float32)
        for kind, given, want in (
                (TensorProto.FLOAT16, x, half), (TensorProto.BFLOAT16, x, to_bf16(x)),
                (TensorProto.FLOAT16, whole, wholes),
                (TensorProto.BFLOAT16, whole, to_bf16(whole))):
            for n in (1, 2, given.size):
                nodes = [("Cast", ["x"], ["h"], {"to": kind}),
                         ("Cast", ["h"], ["y"], {"to": TensorProto.FLOAT})]
                kinds = {"x": helper.np_dtype_to_tensor_dtype(given.dtype)}
                found = self.outcome(nodes, kinds, TensorProto.FLOAT, x=given[:n])
                np.testing.assert_array_equal(found, want[:n])

    def test_infinite_is_what_16_bits_cannot_hold(self):
        x = np.array([4e4, 4e4, -4e4, 65504, np.inf, np.nan, 1], np.float16)
        z = np.array([4e4, 1e4, -4e4, 15, 1, 1, 1], np.float16)
        for flags in ({}, {"detect_negative": 0}, {"detect_positive": 0}):
            nodes = [("Add", ["x", "z"], ["s"], {}), ("IsInf", ["s"], ["y"], flags)]
            found = self.outcome(nodes, dict.fromkeys("xz", TensorProto.FLOAT16), TensorProto.BOOL,
                                 x=x, z=z)
            with np.errstate(over="ignore"):
                infinite = np.isinf(x + z)
            sign = np.sign(np.float32(x) + np.float32(z))
            keep = {0: infinite, 1: sign > 0, 2: sign < 0}
            side = 1 if "detect_negative" in flags else 2 if "detect_positive" in flags else 0
            np.testing.assert_array_equal(found, infinite & keep[side])


if __name__ == "__main__":
    unittest.main()
