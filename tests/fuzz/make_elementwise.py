"""Makers of elementwise operators: each adds one to a graph, with random types and attributes."""

import numpy as np

from graph import Unfit

# Where each is defined, away from where it is steep.
UNARY = {
    "Abs": (-2, 2), "Acos": (-0.75, 0.75), "Acosh": (1.25, 4), "Asin": (-0.75, 0.75),
    "Asinh": (-2, 2), "Atan": (-2, 2), "Atanh": (-0.75, 0.75), "Cos": (-2, 2), "Cosh": (-2, 2),
    "Erf": (-2, 2), "Exp": (-2, 2), "HardSwish": (-4, 4), "Identity": (-2, 2), "Log": (0.25, 4),
    "Mish": (-2, 2), "Neg": (-2, 2), "Reciprocal": (0.25, 4), "Relu": (-2, 2),
    "Sigmoid": (-4, 4), "Sin": (-2, 2), "Sinh": (-2, 2), "Softplus": (-4, 4),
    "Softsign": (-4, 4), "Sqrt": (0, 4), "Tan": (-1.25, 1.25), "Tanh": (-4, 4),
}
EXACT = {"Abs", "Neg", "Relu", "Identity"}
WITH = {  # attributes
    "Celu": ["alpha"], "Elu": ["alpha"], "LeakyRelu": ["alpha"], "Selu": ["alpha", "gamma"],
    "HardSigmoid": ["alpha", "beta"], "Shrink": ["lambd", "bias"], "Swish": ["alpha"],
    "ThresholdedRelu": ["alpha"],
}
BITS = {"BitwiseAnd", "BitwiseOr", "BitwiseXor"}


def unary(g, op):
    low, high = UNARY[op]
    free = op in EXACT or (low, high) in ((-2, 2), (-4, 4)) and op not in ("Exp", "Cosh", "Sinh")
    x = g.some() if free else g.bounded(low, high)
    if op in ("Abs", "Neg", "Identity") and g.chance(0.3):
        x = g.fresh(dtype=g.choose(np.int32, np.int64, np.float64, np.int8))
    elif g.chance(0.1) and op not in EXACT:
        x = g.fresh(dtype=np.float64, low=low, high=high)
    g.add(op, [x], exact=op in EXACT)


def with_attributes(g, op):
    x = g.some(exact=op in ("Shrink", "ThresholdedRelu"))
    given = {a: g.int(1, 8) / 8 for a in WITH[op] if g.chance(0.6)}
    if op == "Selu":
        given = {a: 1 + v for a, v in given.items()}
    g.add(op, [x], **given)


def gelu(g, op):
    g.add(op, [g.some()], **({"approximate": g.choose("none", "tanh")} if g.chance(0.7) else {}))


def jump(g, op):
    g.add(op, [g.some(exact=True)], exact=True)


def special(g, op):
    x = g.numbers(g.shape_of())
    x[g.random.random(x.shape) < 0.3] = g.choose(np.inf, -np.inf, np.nan)
    flags = {a: g.int(0, 1) for a in ("detect_negative", "detect_positive")}
    g.add(op, [g.input(x)], exact=True, **(flags if op == "IsInf" else {}))


def clip(g, op):
    dtype = g.choose(np.float32, np.float32, np.int32, np.int64, np.uint8)
    x = g.some() if dtype == np.float32 else g.fresh(dtype=dtype)
    low = g.constant(g.int(-1, 0) if dtype != np.uint8 else 0, dtype) if g.chance(0.7) else ""
    high = g.constant(1, dtype) if g.chance(0.7) else ""
    g.add(op, [x, low, high], exact=True)


def partner(g, x):
    """A value that broadcasts with x: itself, another of its shape, or a constant."""
    shape, dtype = list(g.shape(x)), g.value(x).dtype
    same = [n for n, v in g.values.items() if v.shape == tuple(shape) and v.dtype == dtype
            and (dtype.kind != "f" or np.isfinite(v).all())]
    if g.chance(0.5):
        return g.choose(*same)
    kept = shape[g.int(0, len(shape)):]
    value = g.numbers([n if g.chance(0.7) else 1 for n in kept], dtype, -1, 1)
    return g.either(value, dtype)


def number(g, op=""):
    """An operand of arithmetic."""
    dtypes = [np.int32, np.int64, np.float64] + [np.uint8, np.int16] * (g.opset >= 14)
    return g.fresh(dtype=g.choose(*dtypes)) if g.chance(0.25) else g.some()


def binary(g, op):
    x = number(g)
    args = [x, partner(g, x)]
    if g.chance(0.3):
        args.reverse()
    g.add(op, args, exact=op != "Mul" or len(g.nodes) < 4)


def divide(g, op):
    if g.chance(0.3):
        dtype = g.choose(np.int32, np.int64)
        x = g.fresh(dtype=dtype, low=-9, high=9)
        g.add(op, [x, g.constant(g.choose(-3, -2, 2, 3, 5), dtype)])
        return
    x = g.some()
    divisor = g.fresh(g.shape(x), low=0.5, high=4)
    g.add(op, [x, divisor])


def modulo(g, op):
    shape = g.shape_of()
    if g.chance(0.4):
        x, y = g.fresh(shape, low=-4, high=4), g.fresh(shape, low=0.5, high=3)
        g.add(op, [x, y], fmod=1)
        return
    dtype = g.choose(np.int32, np.int64, np.uint8, np.int8)
    x, y = g.fresh(shape, dtype, -9, 9), g.fresh(shape, dtype, 1, 5)
    if np.dtype(dtype).kind == "i" and g.chance(0.5):
        y = g.constant(-3, dtype)
    g.add(op, [x, y], **({"fmod": 1} if g.chance(0.5) else {}))


def power(g, op):
    x = g.bounded(0.25, 4)
    g.add(op, [x, g.either(g.choose(0, 0.5, 1, 2, -1, 1.5))])


def variadic(g, op):
    x = g.some()
    args = [x] + [partner(g, x) for _ in range(g.int(0, 3))]
    g.add(op, args, exact=op in ("Max", "Min"))


def compare(g, op):
    dtype = g.choose(np.float32, np.float32, np.int32, np.int64)
    if op == "Equal" and g.chance(0.2):
        dtype = np.bool_
    x = g.some(exact=True) if dtype == np.float32 else g.fresh(dtype=dtype)
    y = partner(g, x)
    if y not in g.exact and y not in g.constants:
        raise Unfit("not exact")
    g.add(op, [x, y], exact=True)


def truth(g):
    return g.pick("b") or g.fresh(dtype=np.bool_)


def logic(g, op):
    x = truth(g)
    g.add(op, [x] if op == "Not" else [x, partner(g, x)], exact=True)


def bits(g, op):
    dtype = g.choose(np.int8, np.uint8, np.int16, np.int32, np.int64, np.uint32)
    x = g.fresh(dtype=dtype, low=-99, high=99)
    g.add(op, [x] + ([partner(g, x)] if op in BITS else []), exact=True)


def shift(g, op):
    dtype = g.choose(np.uint8, np.uint16, np.uint32, np.uint64)
    shape = g.shape_of()
    x, by = g.fresh(shape, dtype, 0, 200), g.fresh(shape, dtype, 0, 7)
    g.add(op, [x, by], exact=True, direction=g.choose("LEFT", "RIGHT"))


def where(g, op):
    c = truth(g)
    x = g.fresh(g.shape(c), g.choose(np.float32, np.float32, np.int64))
    g.add(op, [c, x, partner(g, x)], exact=True)


def prelu(g, op):
    x = g.some(least=2)
    slope = [g.shape(x)[1]] + [1] * (len(g.shape(x)) - 2)
    g.add(op, [x, g.weights(*slope)], exact=True)


CASTS = [1, 2, 3, 5, 6, 7, 9, 10, 11, 12, 13]


def cast(g, op):
    kind = g.choose("f", "i", "b")
    x = g.pick(kind, exact=True) or g.fresh(dtype=g.choose(np.float32, np.int64, np.float64))
    to = g.choose(*CASTS)
    if to in (2, 12, 13) and (g.value(x) < 0).any():
        to = 6  # a negative number in an unsigned type: not defined
    if op == "CastLike":
        like = g.constant([1], {1: np.float32, 6: np.int32, 11: np.float64}.get(to, np.int64))
        g.add(op, [x, like], exact=True)
    else:
        g.add(op, [x], exact=True, to=to)


def bit_cast(g, op):
    x = g.some(exact=True) if g.chance(0.5) else g.fresh(dtype=np.int32)
    g.add(op, [x], exact=True, to=g.choose(6, 12) if g.value(x).dtype.kind == "f" else 6)


MAKERS = {
    **dict.fromkeys(UNARY, unary),
    **dict.fromkeys(WITH, with_attributes),
    "Gelu": gelu, "Clip": clip, "Div": divide, "Mod": modulo, "Pow": power, "PRelu": prelu,
    **dict.fromkeys(["Floor", "Ceil", "Round", "Sign"], jump),
    **dict.fromkeys(["IsInf", "IsNaN"], special),
    **dict.fromkeys(["Add", "Sub", "Mul"], binary),
    **dict.fromkeys(["Max", "Min", "Mean", "Sum"], variadic),
    **dict.fromkeys(["Less", "Greater", "Equal", "LessOrEqual", "GreaterOrEqual"], compare),
    **dict.fromkeys(["And", "Or", "Xor", "Not"], logic),
    **dict.fromkeys([*BITS, "BitwiseNot"], bits),
    "BitShift": shift, "Where": where, "Cast": cast, "CastLike": cast, "BitCast": bit_cast,
}
