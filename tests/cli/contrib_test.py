"""Operators of com.microsoft on random tensors, against ONNX Runtime, or numpy where it has them for
GPUs alone."""
import unittest

import numpy as np

from one_operator import OperatorTest


class Blocks(OperatorTest):
    """Weights in blocks of few bits."""

    def product(self, bits, zeros=None, columns=40, block=16, which=False, **more):
        n, blocks = 6, -(-columns // block)
        z = None
        if zeros == "packed":
            z = self.numbers(np.uint8, n * -(-blocks * bits // 8))
        elif zeros == "real":
            z = self.uniform(0, 2**bits, n * blocks)
        self.agrees("MatMulNBits",
                    [self.normal(2, 3, columns), self.numbers(np.uint8, n, blocks, block * bits // 8),
                     self.uniform(0.1, 1, n * blocks), z,
                     self.numbers(np.int32, blocks * block, low=0, high=blocks) if which else None,
                     self.normal(n) if not which else None],
                    K=columns, N=n, block_size=block, bits=bits, **more)

    def test_product(self):
        for bits in (2, 4, 8):
            for zeros in (None, "packed", "real"):
                if bits != 8 or zeros != "real":  # ONNX Runtime has no kernel
                    self.product(bits, zeros)
            self.product(bits, "packed", 64, 32)
        self.product(4, "real", which=True)

    def test_product_of_bitsandbytes(self):
        for kind in (0, 1):
            for n, k, block in ((6, 32, 16), (5, 33, 16), (3, 7, 32)):
                self.agrees("MatMulBnb4",
                            [self.normal(2, 3, k), self.numbers(np.uint8, (n * k + 1) // 2),
                             self.uniform(0.5, 2, -(-n * k // block))],
                            K=k, N=n, block_size=block, quant_type=kind)

    def test_gather(self):
        for bits in (2, 4, 8):
            for zeros in (False, True):
                for columns, block in ((64, 16), (96, 32)):
                    blocks = columns // block
                    self.agrees(
                        "GatherBlockQuantized",
                        [self.numbers(np.uint8, 5, columns * bits // 8),
                         np.array([[1, -1, 5], [0, 3, -6]], np.int64),  # 5 and -6 are out of range
                         self.uniform(0.1, 1, 5, blocks)]
                        + [self.numbers(np.uint8, 5, -(-blocks * bits // 8))] * zeros,
                        bits=bits, block_size=block)


class Windows(OperatorTest):
    def test_max_pool_with_channels_last(self):
        for dtype in (np.int8, np.uint8):
            x = self.numbers(dtype, 2, 7, 5, 3)
            self.agrees("NhwcMaxPool", [x], kernel_shape=[2, 3], strides=[2, 1], pads=[0, 1, 1, 1])
            self.agrees("NhwcMaxPool", [x], kernel_shape=[3, 3], strides=[2, 2],
                        auto_pad="SAME_UPPER")
            self.agrees("NhwcMaxPool", [x], kernel_shape=[2, 2], strides=[2, 2], dilations=[2, 1],
                        ceil_mode=1)

    def test_quantised_average_pool(self):
        """Ties of odd zero points too."""
        scale = lambda v: np.array(v, np.float32)
        for dtype in (np.uint8, np.int8):
            for zero in (0, 1, 3, 127):
                for last in (0, 1):
                    self.agrees("QLinearAveragePool",
                                [self.numbers(dtype, 1, 4, 5, 3), scale(0.5), np.array(7, dtype),
                                 scale(0.25 + zero), np.array(zero, dtype)],
                                kernel_shape=[2, 2], channels_last=last)


class Rest(OperatorTest):
    def test_distances(self):
        a, b = self.normal(5, 7), self.normal(3, 7)
        for metric in ("sqeuclidean", "euclidean"):
            self.agrees("CDist", [a, b], metric=metric)
        away = np.abs(a[:, None] - b)
        self.agrees("CDist", [a, b], want=[away.sum(2)], metric="cityblock")
        self.agrees("CDist", [a, b], want=[away.max(2)], metric="chebyshev")

    def test_quantisation_of_zeros(self):
        zeros = np.zeros((3, 4), np.float32)
        self.agrees("DynamicQuantizeLinear", [zeros], results=3, domain="")
        self.agrees("DynamicQuantizeMatMul",
                    [zeros, self.numbers(np.int8, 4, 2), self.uniform(0.1, 1, 1)])


if __name__ == "__main__":
    unittest.main()
