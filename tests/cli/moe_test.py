"""Mixtures of experts against ONNX Runtime, and numpy where its CPU build has no kernel."""
import unittest

import numpy as np

from one_operator import OperatorTest


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def activate(name, x, third, fusion, alpha, beta, limit):
    if name == "swiglu":
        gate, linear = x, third
        if third is None:
            gate, linear = (x[0::2], x[1::2]) if fusion == 1 else np.split(x, 2)
        gate, linear = np.minimum(gate, limit), np.clip(linear, -limit, limit)
        return gate * sigmoid(alpha * gate) * (linear + beta)
    if name == "relu":
        x = np.maximum(x, 0)
    elif name == "silu":
        x = x * sigmoid(x)
    elif name == "gelu":
        x = x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    return x if third is None else x * third


def mixture(x, logits, layers, k, normalize, name, fusion, alpha, beta, limit, weights):
    """`layers`: of fc1, fc2 and fc3 (or None), each weights [E, N, K] and a bias."""
    share = np.exp(logits - logits.max(-1, keepdims=True))
    share /= share.sum(-1, keepdims=True)
    out = np.zeros_like(x)
    for t, row in enumerate(x):
        chosen = np.argsort(-logits[t], kind="stable")[:k]
        w = (share if weights is None else weights)[t, chosen]
        for e, v in zip(chosen, w / w.sum() if normalize else w):
            fc1, fc2, fc3 = [None if layer is None else
                             lambda v, layer=layer: v @ layer[0][e].T + layer[1][e]
                             for layer in layers]
            h = activate(name, fc1(row), None if fc3 is None else fc3(row), fusion, alpha, beta, limit)
            out[t] += v * fc2(h)
    return out


def unpack(data, bits):
    parts = [(data >> low) & (2**bits - 1) for low in range(0, 8, bits)]
    return np.stack(parts, -1).reshape(*data.shape[:-1], -1).astype(np.float64)


class Experts(OperatorTest):
    def layer(self, n, k, bits, block, zeros):
        """A layer's inputs: weights, scales, bias, zero points; and what they stand for."""
        bias = self.normal(5, n)
        if bits == 0:
            w = self.normal(5, n, k)
            return [w, None, bias, None], (w.astype(np.float64), bias)
        blocks = k // block if block else 1
        q = self.numbers(np.uint8, 5, n, k * bits // 8)
        scales = self.uniform(0.5, 1, 5, n, *([blocks] if block else [])) / np.float32(2**bits)
        z, point = None, np.full((5, n, blocks), 2.0**(bits - 1))
        if zeros:
            z = self.numbers(np.uint8, *((5, n, -(-blocks * bits // 8)) if block
                                         else (5, -(-n * bits // 8))))
            point = unpack(z, bits)
            point = point[..., :blocks] if block else point[:, :n, None]
        w = unpack(q, bits).reshape(5, n, blocks, -1)
        w = (w - point[..., None]) * scales.reshape(5, n, blocks, 1)
        return [q, scales, bias, z], (w.reshape(5, n, k), bias)

    def mix(self, name, k=2, normalize=1, bits=0, block=0, zeros=False, third=False, fusion=1,
            limit=None, tokens=4, routed=False, known=True):
        """`known`: ONNX Runtime computes it, as it is defined."""
        hidden, inner = (32, 48) if bits else (6, 7)
        fused = name == "swiglu" and not third
        x, logits = self.normal(tokens, hidden), 2 * self.normal(tokens, 5)
        weights = np.abs(self.normal(tokens, 5)) if routed else None
        parts, layers = zip(*[self.layer(n, m, bits, block, zeros) for n, m in (
            ((2 if fused else 1) * inner, hidden), (hidden, inner), (inner, hidden))])
        if not third:
            parts, layers = parts[:2] + ([None] * 4,), layers[:2] + (None,)
        attributes = {"k": k, "normalize_routing_weights": normalize, "activation_type": name,
                      "swiglu_fusion": fusion if fused else 0, "activation_alpha": 1.3,
                      "activation_beta": 0.7}
        if limit is not None:
            attributes["swiglu_limit"] = limit
        if bits == 0:
            inputs = [x, logits] + [v for w, _, bias, _ in parts for v in (w, bias)]
        else:
            inputs = [x, logits] + [v for w, scale, bias, _ in parts for v in (w, scale, bias)]
            inputs += [part[3] for part in parts] + [weights]
            attributes["expert_weight_bits"] = bits
            if block:
                attributes["block_size"] = block
        while inputs[-1] is None:
            inputs.pop()
        want = mixture(x.astype(np.float64), logits, layers, k, normalize, name, fusion, 1.3, 0.7,
                       np.inf if limit is None else limit, weights)
        fixed = [i for i in range(2, len(inputs)) if i != 14]
        self.agrees("MoE" if bits == 0 else "QMoE", inputs, constants=fixed,
                    want=None if known else [want.astype(np.float32)], **attributes)

    def test_real_weights(self):
        for name in ("relu", "gelu", "silu", "identity", "swiglu"):
            self.mix(name, k=1, normalize=0)
            self.mix(name, limit=0.5)
            self.mix(name, tokens=2, normalize=0)  # by route

    def test_what_onnx_runtime_lacks(self):
        self.mix("swiglu", fusion=2, limit=0.5, known=False)
        for tokens in (2, 4):
            self.mix("silu", third=True, tokens=tokens, known=False)
            self.mix("swiglu", third=True, tokens=tokens, known=False)
        # It normalises weights whether or not it is told to; of blocks of 8 bits it rounds inputs.
        self.mix("relu", normalize=0, bits=4, known=False)
        self.mix("swiglu", bits=8, block=16, zeros=True, known=False)
        self.mix("silu", bits=4, block=16, zeros=True, third=True, known=False)

    def test_few_bits(self):
        for bits in (2, 4, 8):
            for block in (0, 16) if bits != 8 else (0,):
                for zeros in (False, True):
                    self.mix("swiglu", bits=bits, block=block, zeros=zeros, tokens=2 + 2 * zeros)
        self.mix("silu", bits=4, routed=True)
        self.mix("silu", bits=4, routed=True, normalize=0, tokens=1)


if __name__ == "__main__":
    unittest.main()
