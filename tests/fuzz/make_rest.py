"""Makers of quantised, signal, loss, training, sequence, control and text operators."""

import numpy as np
from onnx import TensorProto, helper


# Quantised: scales are powers of two, so that rounding is the same everywhere.

def bytes_type(g):
    return g.choose(np.uint8, np.int8)


def scales_of(g, count=None):
    return (0.5 ** g.random.integers(0, 4, () if count is None else count)).astype(np.float32)


def quantize(g, op):
    dtype = bytes_type(g)
    if op == "QuantizeLinear":
        x = g.some(least=1, exact=True)
    else:
        x = g.fresh(dtype=dtype, low=-99, high=99)
    axis = g.int(0, len(g.shape(x)) - 1)
    count = g.shape(x)[axis] if g.chance(0.5) else None
    zero = g.random.integers(0, 9, () if count is None else count)
    args = [x, g.constant(scales_of(g, count), np.float32)]
    if g.chance(0.7) or (op == "DequantizeLinear" and dtype == np.int8):
        args.append(g.constant(zero, dtype))
    g.add(op, args, exact=True, **({} if count is None else {"axis": axis}))


def dynamic_quantize(g, op):
    x = g.numbers(g.shape_of())
    x.ravel()[0] = 2.0
    if x.size > 1:
        x.ravel()[1] = -1.984375  # the range is 255/64, so that the scale is 1/64
    g.add(op, [g.input(np.round(x * 64) / 64)], 3)


def integer_product(g, op):
    m, k, n = (g.int(1, 6) for _ in range(3))
    a, b = bytes_type(g), bytes_type(g)
    args = [g.fresh([*g.shape_of(g.int(0, 1), 2), m, k], a, -99, 99),
            g.either(g.numbers([k, n], b, -99, 99), b)]
    if g.chance(0.6):
        args += [g.constant(g.int(0, 5), a), g.constant(g.int(0, 5), b)]
    g.add(op, args, exact=True)


def integer_conv(g, op):
    c = g.int(1, 3)
    x = g.fresh([g.int(1, 2), c, g.int(2, 5), g.int(2, 5)], np.uint8, 0, 99)
    w = g.constant(g.numbers([g.int(1, 3), c, 2, 2], np.uint8, 0, 99), np.uint8)
    g.add(op, [x, w] + ([g.constant(g.int(0, 9), np.uint8)] if g.chance(0.6) else []), exact=True,
          pads=[g.int(0, 1)] * 4)


def linear_product(g, op):
    m, k, n = (g.int(1, 5) for _ in range(3))
    t = bytes_type(g)
    one = lambda value: g.constant(value, np.float32)
    args = [g.fresh([m, k], t, -9, 9), one(0.5), g.constant(1, t),
            g.either(g.numbers([k, n], t, -9, 9), t), one(0.25), g.constant(2, t), one(2.0),
            g.constant(4, t)]
    g.add(op, args, exact=True)


def linear_conv(g, op):
    c, out = g.int(1, 3), g.int(1, 3)
    one = lambda value: g.constant(value, np.float32)
    args = [g.fresh([1, c, g.int(2, 5), g.int(2, 5)], np.uint8, 0, 40), one(0.5),
            g.constant(3, np.uint8), g.constant(g.numbers([out, c, 2, 2], np.uint8, 0, 40),
                                                np.uint8), one(0.25), g.constant(2, np.uint8),
            one(8.0), g.constant(4, np.uint8)]
    g.add(op, args, exact=True)


# Signals

def window(g, op):
    g.add(op, [g.constant(g.int(2, 9))], periodic=g.int(0, 1))


def mel(g, op):
    g.add(op, [g.constant(g.int(2, 6)), g.constant(g.choose(8, 16)), g.constant(8000),
               g.constant(20.0, np.float32), g.constant(3800.0, np.float32)])


def dft(g, op):
    n, parts, inverse = g.int(2, 7), g.int(1, 2), g.int(0, 1)
    x = g.fresh([g.int(1, 2), n, g.int(1, 3), parts])
    onesided = 1 if parts == 1 and not inverse and g.chance(0.4) else 0
    if g.opset >= 20:
        g.add(op, [x, "", g.constant(1)], inverse=inverse, onesided=onesided)
    else:
        g.add(op, [x], axis=1, inverse=inverse, onesided=onesided)


def stft(g, op):
    frame = g.choose(4, 6, 8)
    x = g.fresh([g.int(1, 2), frame + g.int(1, 9), 1])
    shape = g.constant(g.numbers([frame], low=0.25, high=1), np.float32)
    g.add(op, [x, g.constant(g.int(1, 4)), shape], onesided=g.int(0, 1))


# Losses, dropout, training

def loss(g, op):
    n, c = g.int(1, 4), g.int(2, 5)
    rest = g.shape_of(g.int(0, 2), 3)
    x = g.fresh([n, c, *rest])
    target = g.either(g.random.integers(0, c, [n, *rest]), np.int64)
    args = [x, target] + ([g.constant(g.numbers([c], low=0.25, high=1), np.float32)]
                          if g.chance(0.5) else [])
    given = {"ignore_index": g.int(0, c - 1)} if g.chance(0.3) else {}
    how = g.choose("none", "sum", "mean")
    if given and how == "mean":
        how = "sum"  # nothing counts where all are ignored: 0 / 0
    outputs = 2 if op == "SoftmaxCrossEntropyLoss" and g.chance(0.3) else 1
    g.add(op, args, outputs, reduction=how, **given)


def dropout(g, op):
    g.add(op, [g.some(), g.constant(0.5, np.float32)], exact=True)


def update(g, op):
    shape = g.shape_of()
    rate, step = g.constant(0.125, np.float32), g.constant(g.int(0, 5))
    args = [rate, step, g.fresh(shape), g.fresh(shape)]
    given = {"norm_coefficient": 0.25}
    if op.endswith("Momentum"):
        args += [g.fresh(shape)]
        given |= {"alpha": 0.5, "beta": 0.75, "mode": g.choose("standard", "nesterov")}
    else:
        args += [g.fresh(shape, low=0, high=2) for _ in range(2 if op.endswith("Adam") else 1)]
        given |= {"epsilon": 0.25}
        if op.endswith("Adam"):
            args[4] = g.fresh(shape)
    g.add(op, args, 3 if op.endswith("Adam") else 2, **given)


# Sequences and optional values: blocks, which end in tensors.

def sequences(g, op):
    """A chain over a list of tensors, that ends in tensors and has the operator in it."""
    names = iter(f"s{len(g.values)}_{i}" for i in range(20))
    nodes, shape = [], g.shape_of(g.int(1, 3))

    def node(kind, inputs, **given):
        out = next(names)
        nodes.append(helper.make_node(kind, inputs, [out], **given))
        return out

    items = [g.fresh(shape) for _ in range(g.int(2, 3))]
    if op == "SplitToSequence":
        at = g.int(0, len(shape) - 1)
        made = node(op, items[:1], axis=at, keepdims=1)
        length = shape[at]
    elif op == "SequenceEmpty":
        made, length = node(op, [], dtype=1), 0
    else:
        made, length = node("SequenceConstruct", items), len(items)
    if op == "SequenceErase":
        made, length = node(op, [made, g.constant(g.int(-length, length - 1))]), length - 1
    if op in ("SequenceInsert", "SequenceEmpty"):
        at = [g.constant(g.int(0, length))] if g.chance(0.5) else []
        made, length = node("SequenceInsert", [made, items[0], *at]), length + 1
    if op == "SequenceMap":
        body = helper.make_graph(
            [helper.make_node("Neg", ["i"], ["o"])], "b",
            [helper.make_tensor_value_info("i", TensorProto.FLOAT, None)],
            [helper.make_tensor_value_info("o", TensorProto.FLOAT, None)])
        made = node(op, [made], body=body)
    if op == "SequenceAt":
        end = node(op, [made, g.constant(g.int(-length, length - 1))])
    elif op == "SequenceLength":
        end = node(op, [made])
    else:
        new = g.int(0, 1) if op not in ("SplitToSequence",) else 0
        end = node("ConcatFromSequence", [made], axis=0, new_axis=new)
    g.block(nodes, [end], exact=True, reads=[n for p in nodes for n in p.input
                                             if n in g.values or n in g.constants])


def optional(g, op):
    name = f"s{len(g.values)}"
    x = g.fresh()
    nodes = [helper.make_node("Optional", [x], [name + "o"])]
    nodes.append(helper.make_node("OptionalHasElement", [name + "o"], [name + "e"]))
    g.block(nodes, [name + "e"], exact=True, reads=[x])


# Control flow: bodies read their own inputs only.

def info(name, shape=None, dtype=TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, dtype, shape)


def branch(g, op):
    x = g.some()
    bodies = [helper.make_graph([helper.make_node("Constant", [], [f"k{i}"], value_float=0.5 * i),
                                 helper.make_node("Neg", [f"k{i}"], [f"r{i}"])], f"b{i}", [],
                                [info(f"r{i}", [])])
              for i in range(2)]
    condition = g.either(g.int(0, 1), np.bool_)
    names = g.add(op, [condition], exact=True, then_branch=bodies[0], else_branch=bodies[1])
    g.add("Add", [x, names[0]], exact=True)


def loop(g, op):
    shape = g.shape_of(g.int(1, 3), 4)
    body = helper.make_graph(
        [helper.make_node("Identity", ["c"], ["d"]),
         helper.make_node("Mul", ["s", "s"], ["q"]), helper.make_node("Tanh", ["q"], ["t"])], "b",
        [info("i", [], TensorProto.INT64), info("c", [], TensorProto.BOOL), info("s", shape)],
        [info("d", [], TensorProto.BOOL), info("t", shape)])
    # No scan outputs: the reference joins them along an axis that is there.
    g.add(op, [g.constant(g.int(1, 4)), g.constant(True, np.bool_), g.fresh(shape)], body=body)


def scan(g, op):
    steps, width = g.int(1, 5), g.int(1, 4)
    body = helper.make_graph(
        [helper.make_node("Add", ["s", "x"], ["t"]), helper.make_node("Neg", ["t"], ["y"])], "b",
        [info("s", [width]), info("x", [width])], [info("t", [width]), info("y", [width])])
    given = {a: [g.int(0, 1)] for a in ("scan_input_directions", "scan_output_directions")
             if g.chance(0.5)}
    g.add(op, [g.fresh([width]), g.fresh([steps, width])], 2, exact=True, body=body,
          num_scan_inputs=1, **given)


# Strings

WORDS = ["", "a", "Ab", "cat dog", "Été", "a,b,c", "x1", "grün", "a@b.org"]


def words(g, shape=None):
    shape = g.shape_of(g.int(1, 2)) if shape is None else shape
    return g.input(g.random.choice(np.array(WORDS, object), shape))


def string_concat(g, op):
    x = words(g)
    g.add(op, [x, words(g, g.choose(g.shape(x), [1]))], exact=True)


def normalizer(g, op):
    given = {"case_change_action": g.choose("LOWER", "UPPER", "NONE")}
    if g.chance(0.5):
        given |= {"stopwords": ["a", "x1"], "is_case_sensitive": g.int(0, 1)}
    # The reference also takes accents off, and words out of the middle of a string.
    plain = [word for word in WORDS if word.isascii() and word and " " not in word]
    x = g.input(np.array(["b", *g.random.choice(np.array(plain, object), 3)], object))
    g.add(op, [x], exact=True, **given)


def string_split(g, op):
    given = g.choose({}, {"delimiter": ","}, {"delimiter": "a"}, {"delimiter": ",", "maxsplit": 1})
    g.add(op, [words(g)], 2, exact=True, **given)


def regex(g, op):
    g.add(op, [words(g)], exact=True, pattern=g.choose(r"a.*", r"[a-z]\d", r".+@.+\.org", r""))


def tf_idf(g, op):
    x = g.either(g.random.integers(0, 6, g.shape_of(g.int(1, 2), 6)), np.int64)
    g.add(op, [x], exact=True, mode=g.choose("TF", "IDF", "TFIDF"), min_gram_length=1,
          max_gram_length=2, max_skip_count=g.int(0, 2), ngram_counts=[0, 3],
          ngram_indexes=[0, 1, 2, 3, 4], pool_int64s=[1, 2, 4, 1, 2, 4, 5],
          weights=[1.0, 0.5, 2.0, 0.25, 1.5])


MAKERS = {
    **dict.fromkeys(["QuantizeLinear", "DequantizeLinear"], quantize),
    "DynamicQuantizeLinear": dynamic_quantize, "MatMulInteger": integer_product,
    "ConvInteger": integer_conv, "QLinearMatMul": linear_product, "QLinearConv": linear_conv,
    **dict.fromkeys(["BlackmanWindow", "HammingWindow", "HannWindow"], window),
    "MelWeightMatrix": mel, "DFT": dft, "STFT": stft,
    **dict.fromkeys(["NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"], loss),
    "Dropout": dropout,
    **dict.fromkeys([f"ai.onnx.preview.training::{n}" for n in ("Adagrad", "Adam", "Momentum")],
                    update),
    **dict.fromkeys(["SequenceAt", "SequenceConstruct", "SequenceEmpty", "SequenceErase",
                     "SequenceInsert", "SequenceLength", "SequenceMap", "SplitToSequence",
                     "ConcatFromSequence"], sequences),
    **dict.fromkeys(["Optional", "OptionalHasElement"], optional),
    "If": branch, "Loop": loop, "Scan": scan, "StringConcat": string_concat,
    "StringNormalizer": normalizer, "StringSplit": string_split, "RegexFullMatch": regex,
    "TfIdfVectorizer": tf_idf,
}
