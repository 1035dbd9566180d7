"""Layers that ONNX Runtime fuses (com.microsoft), against its kernels, or numpy where those are for GPUs
alone."""
import math
import unittest

import numpy as np

from one_operator import OperatorTest


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def silu(x):
    return x * sigmoid(x)


def gelu(x):
    return x / 2 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def fast_gelu(x):
    return x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def grouped(x, gamma, beta, groups, epsilon, activated):
    """x: [N, H, W, C]"""
    n, h, w, c = x.shape
    y = x.astype(np.float64).reshape(n, h * w, groups, c // groups)
    y = y - y.mean((1, 3), keepdims=True)
    y = y / np.sqrt((y * y).mean((1, 3), keepdims=True) + epsilon)
    y = y.reshape(x.shape) * gamma + beta
    return (silu(y) if activated else y).astype(np.float32)


def quantised_convolution(x, zero, w, scales, bias, out_zero, channels_last):
    """3x3, one padding, as many groups as the weights say; exact, where ONNX Runtime's sums of two
    products saturate at 16 bits (AVX2)."""
    x = x.astype(np.int64) - zero
    x = np.pad(x if not channels_last else x.transpose(0, 3, 1, 2), ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3), (2, 3))  # N C H W 3 3
    groups = np.split(windows, windows.shape[1] // w.shape[1], 1)
    sums = [np.einsum("nchwij,ocij->nohw", part, kernels.astype(np.int64))
            for part, kernels in zip(groups, np.split(w, len(groups)))]
    y = (np.concatenate(sums, 1) + bias[:, None, None]) * scales[:, None, None].astype(np.float64)
    y = np.clip(np.rint(y) + out_zero, 0, 255).astype(np.uint8)
    return y.transpose(0, 2, 3, 1) if channels_last else y


class OnTheCpu(OperatorTest):
    """Those that ONNX Runtime computes here."""

    def test_gates(self):
        x, y = self.normal(2, 3, 12), self.normal(2, 3, 12)
        self.agrees("GatedAdd", [x, y, self.normal(2, 3, 1)])
        for activation in ("silu", "swish", "sigmoid"):
            self.agrees("GatedRMSNorm", [x, self.normal(4), y], activation=activation, epsilon=1e-3)
        self.agrees("ScaledSiLU", [x], alpha=0.7)
        self.agrees("ScaledSiLU", [x, np.array(1.3, np.float32)], alpha=0.7)

    def test_quantised(self):
        scale, u8 = lambda v: np.array(v, np.float32), np.uint8
        for last in (0, 1):
            x = self.numbers(u8, *((1, 5, 4, 4) if last else (1, 4, 5, 4)))
            w, scales = self.numbers(np.int8, 6, 2, 3, 3), self.uniform(0.01, 0.02, 6)
            bias = self.numbers(np.int32, 6, low=-999, high=999)
            self.agrees("QLinearConv",
                        [x, scale(0.1), np.array(100, u8), w, scales, np.zeros(6, np.int8),
                         scale(0.4), np.array(120, u8), bias],
                        want=[quantised_convolution(x, 100, w, 0.1 * scales / 0.4, bias, 120, last)],
                        constants=[1, 2, 3, 4, 5, 6, 7, 8], channels_last=last, group=2,
                        pads=[1, 1, 1, 1])
        self.agrees("QLinearWhere",
                    [self.numbers(np.int8, 3, 1, low=0, high=2).astype(bool), self.numbers(u8, 4),
                     scale(0.5), np.array(7, u8), self.numbers(u8, 3, 4), scale(0.25),
                     np.array(3, u8), scale(0.75), np.array(9, u8)])

    def test_packed_attention(self):
        batch, length, heads, depth = 2, 5, 3, 4
        all_three = self.normal(batch, length, heads, 3, depth)
        q, k, v = (all_three[:, :, :, i].reshape(batch, length, -1) for i in range(3))
        want = self.agrees("MultiHeadAttention", [q, k, v], num_heads=heads)
        self.agrees("MultiHeadAttention", [all_three], want=want, num_heads=heads)
        self.agrees("MultiHeadAttention", [q, all_three[:, :, :, 1:]], want=want, num_heads=heads)

    def test_positions_in_three_dimensions(self):
        x, caches = self.normal(2, 3, 4, 16), [self.normal(20, 8), self.normal(20, 8)]
        where = self.numbers(np.int64, 3, 2, 4, low=0, high=20)
        for layout, sections in ((0, [3, 1, 4]), (0, [8, 0, 0]), (1, [4, 2, 2]), (1, [2, 3, 3])):
            for interleaved in (0, 1):
                self.agrees("MRotaryEmbedding", [x, where] + caches, mrope_section=sections,
                            mrope_layout=layout, interleaved=interleaved)
        flat = x.transpose(0, 2, 1, 3).reshape(2, 4, 48)
        self.agrees("MRotaryEmbedding", [flat, where] + [c[:, :4] for c in caches], num_heads=3,
                    rotary_embedding_dim=8, mrope_section=[1, 1, 2])

    def test_states(self):
        q, k, v = self.normal(2, 3, 8), self.normal(2, 3, 8), self.normal(2, 3, 6)
        self.agrees("LinearAttention",
                    [q, k, v, self.normal(2, 2, 4, 3), -self.uniform(0, 1, 2, 3, 2),
                     self.uniform(0, 1, 2, 3, 2)], results=2, q_num_heads=2, kv_num_heads=2)
        self.agrees("CausalConvWithState",
                    [self.normal(2, 4, 6), self.normal(4, 1, 3), self.normal(4),
                     self.normal(2, 4, 2)], results=2, activation="silu")

    def test_standard_operators_of_another_domain(self):
        x = self.normal(3, 4)
        self.agrees("Pad", [x, np.array([1, 0, 0, 2]), np.array(1.5, np.float32)], constants=[1, 2])
        self.agrees("GatherND", [x, np.array([[2, 1], [0, 3]])])
        self.agrees("TransposeMatMul", [x, self.normal(5, 4)], transB=1, alpha=0.5)
        self.agrees("Range", [np.array(v, np.float32) for v in (1, 3, 0.5)], constants=[0, 1, 2])
        self.agrees("UnfoldTensor", [self.normal(2, 9, 3)], dim=1, size=4, step=2)


class Elsewhere(OperatorTest):
    """Those that it computes on GPUs, or nowhere."""

    def test_quantised_mean(self):
        x = self.numbers(np.uint8, 3, 4, 5)
        scale, zero = lambda v: np.array(v, np.float32), lambda v: np.array(v, np.uint8)
        for axes, keep in (([1], 1), ([0, -1], 0)):
            mean = ((x.astype(np.float64) - 7) * 0.5).mean(tuple(axes), keepdims=bool(keep))
            want = np.clip(np.rint(mean / 0.75) + 9, 0, 255).astype(np.uint8)
            self.agrees("QLinearReduceMean", [x, scale(0.5), zero(7), scale(0.75), zero(9)],
                        want=[want], axes=axes, keepdims=keep)

    def test_group_norm(self):
        x, gamma, beta, bias = self.normal(2, 4, 5, 6), *(self.normal(6) for _ in range(3))
        first = lambda v: v.transpose(0, 3, 1, 2)
        for groups, activation in ((2, 0), (3, 1)):
            more = {"groups": groups, "activation": activation, "epsilon": 1e-3}
            want = grouped(x, gamma, beta, groups, 1e-3, activation)
            self.agrees("GroupNorm", [x, gamma, beta], want=[want], **more)
            self.agrees("GroupNorm", [first(x), gamma, beta], want=[first(want)], channels_last=0,
                        **more)
            for skip in (self.normal(2, 4, 5, 6), self.normal(2, 1, 1, 6), self.normal(2, 6)):
                s = x + (skip if skip.ndim == 4 else skip[:, None, None]) + bias
                want = grouped(s, gamma, beta, groups, 1e-3, activation)
                self.agrees("SkipGroupNorm", [x, gamma, beta, skip, bias], results=2,
                            want=[want, s], **more)

    def test_bias(self):
        x, bias, skip = self.normal(2, 3, 8), self.normal(8), self.normal(2, 3, 8)
        self.agrees("BiasAdd", [x, bias, skip], want=[x + bias + skip])
        left, right = np.split(x + bias, 2, -1)
        self.agrees("BiasSplitGelu", [x, bias], want=[(left * gelu(right)).astype(np.float32)])
        w, b = self.normal(8, 5), self.normal(5)
        self.agrees("GemmFastGelu", [x, w, b], want=[fast_gelu(x @ w + b)])

    def test_convolution_with_channels_last(self):
        x, w, b = self.normal(1, 4, 6, 5), self.normal(3, 4, 3, 3), self.normal(3)
        more = {"pads": [1, 1, 0, 0], "strides": [1, 2]}
        x = self.normal(1, 4, 6, 5)
        want = self.agrees("Conv", [x, w, b], domain="", **more)[0].transpose(0, 2, 3, 1)
        last = np.ascontiguousarray(x.transpose(0, 2, 3, 1))
        self.agrees("NhwcConv", [last, w, b], want=[want], **more)
        skip = self.normal(*want.shape)
        self.agrees("NhwcFusedConv", [last, w, b, skip], want=[np.maximum(want + skip, 0)],
                    activation="Relu", **more)

    def test_position_bias(self):
        """The formula of T5: Raffel et al. 2020, as in its authors' code."""
        table = self.normal(8, 3)
        for both in (0, 1):
            away = np.arange(30)[None] - np.arange(25)[:, None]
            n, first = 8 // (1 + both), (away > 0) * 4 * both
            away = np.abs(away) if both else np.maximum(-away, 0)
            with np.errstate(divide="ignore"):
                large = n // 2 + (np.log(away / (n // 2)) / np.log(20 / (n // 2)) * (n - n // 2))
            bucket = first + np.where(away < n // 2, away, np.clip(large, 0, n - 1).astype(int))
            want = table.reshape(3, 8)[:, bucket][None]
            self.agrees("RelativePositionBias", [table, np.array([25]), np.array([30])],
                        constants=[1, 2], want=[want], is_bidirectional=both, max_distance=20)

    def test_gated_position_bias(self):
        q, bias, position = self.normal(2, 5, 12), self.normal(12), self.normal(1, 3, 5, 5)
        w, b, a = self.normal(4, 8), self.normal(8), self.normal(1, 3, 1, 1)
        heads = (q + bias).reshape(2, 5, 3, 4).transpose(0, 2, 1, 3)
        u, r = np.split(sigmoid((heads @ w + b).reshape(2, 3, 5, 2, 4).sum(-1)), 2, -1)
        self.agrees("GatedRelativePositionBias", [q, bias, position, w, b, a],
                    want=[(u * (r * a - 1) + 2) * position], num_heads=3)


if __name__ == "__main__":
    unittest.main()
