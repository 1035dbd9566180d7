"""Makers of the operators that networks are made of: windows, norms, products, recurrences,
attention, resampling."""

import numpy as np

from graph import Unfit


def window_of(g, spatial):
    """Kernel, strides, dilations and pads that fit, as attributes."""
    kernel = [g.int(1, min(3, n)) for n in spatial]
    dilations = [g.choose(1, 2) if 2 * (k - 1) < n else 1 for k, n in zip(kernel, spatial)]
    given = {"kernel_shape": kernel, "strides": [g.int(1, 3) for _ in spatial]}
    if g.chance(0.5):
        given["dilations"] = dilations
    if g.chance(0.3):
        # Steps wider than the kernel would make SAME's pads negative: nothing says what then.
        given["auto_pad"] = g.choose("SAME_UPPER", "SAME_LOWER", "VALID")
        given["strides"] = [min(s, k) for s, k in zip(given["strides"], kernel)]
        given.pop("dilations", None)
    else:
        given["pads"] = [g.int(0, k - 1) for k in kernel] + [g.int(0, k - 1) for k in kernel]
    return given


def image(g, least=1, channels=None, most=6):
    rank = g.int(1, 3) if channels is None else 2
    return g.fresh([g.int(1, 2), channels or g.int(1, 4),
                    *[g.int(least, most) for _ in range(rank)]])


def conv(g, op):
    x = g.pick(rank=g.choose(3, 4)) if g.chance(0.5) else None
    x = x or image(g)
    c, spatial = g.shape(x)[1], g.shape(x)[2:]
    given = window_of(g, spatial)
    group = c if g.chance(0.3) else 1
    out = group * g.int(1, 4)
    args = [x, g.weights(out, c // group, *given["kernel_shape"])]
    g.add(op, args + ([g.weights(out)] if g.chance(0.7) else []), group=group, **given)


def conv_transpose(g, op):
    x = image(g)
    c, spatial = g.shape(x)[1], g.shape(x)[2:]
    kernel = [g.int(1, 3) for _ in spatial]
    strides = [g.int(1, 3) for _ in spatial]
    given = {"strides": strides}
    if g.chance(0.5):
        given["pads"] = [g.int(0, k - 1) // 2 for k in kernel] * 2
    if g.chance(0.4):
        given["output_padding"] = [g.int(0, s - 1) for s in strides]
    if g.chance(0.3):
        given["dilations"] = [g.int(1, 2) for _ in spatial]
    group = c if g.chance(0.3) else 1
    args = [x, g.weights(c, g.int(1, 3), *kernel)]
    out = g.shape(args[1])[1] * group
    g.add(op, args + ([g.weights(out)] if g.chance(0.5) else []), group=group, **given)


def pool(g, op):
    x = image(g, 2)
    given = window_of(g, g.shape(x)[2:])
    if op == "LpPool":
        g.add(op, [x], p=g.int(1, 3), **given)
        return
    if "auto_pad" not in given and g.chance(0.4):
        given["ceil_mode"] = 1
    if op == "AveragePool":
        if g.opset < 19:
            given.pop("dilations", None)
        g.add(op, [x], count_include_pad=g.int(0, 1), **given)
    else:
        g.add(op, [x], exact=True, **given)


def pool_indices(g, op):
    """MaxPool with positions, and MaxUnpool of them."""
    x = g.fresh([g.int(1, 2), g.int(1, 3), 2 * g.int(1, 3), 2 * g.int(1, 3)])
    made = g.add("MaxPool", [x], 2, exact=True, kernel_shape=[2, 2], strides=[2, 2])
    g.add("MaxUnpool", made, kernel_shape=[2, 2], strides=[2, 2])


def global_pool(g, op):
    x = image(g, channels=g.int(1, 4))
    g.add(op, [x], exact=op == "GlobalMaxPool")


def batch_norm(g, op):
    if g.opset < 14:
        raise Unfit("the reference trains there")
    x = g.some(least=2)
    c = g.shape(x)[1]
    variance = g.constant(g.random.integers(1, 5, c) / 2, np.float32)
    args = [x, g.weights(c), g.weights(c), g.weights(c), variance]
    g.add(op, args, **({"epsilon": 0.1} if g.chance(0.5) else {}))


def instance_norm(g, op):
    x = g.some(least=3)
    c = g.shape(x)[1]
    g.add(op, [x, g.weights(c), g.weights(c)], epsilon=0.1)


def group_norm(g, op):
    groups, each = g.int(1, 3), g.int(1, 2)
    x = g.fresh([g.int(1, 2), groups * each, *g.shape_of(g.int(1, 2), 4)])
    c = groups * each if g.opset >= 21 else groups
    g.add(op, [x, g.weights(c), g.weights(c)], num_groups=groups, epsilon=0.1)


def mean_variance(g, op):
    x = g.fresh([g.int(2, 3), g.int(1, 3), g.int(2, 4), g.int(2, 4)])
    g.add(op, [x], axes=g.choose([0, 2, 3], [2, 3], [0, 1, 2, 3]))


def layer_norm(g, op):
    x = g.some(least=1)
    rank = len(g.shape(x))
    axis = g.int(-rank, rank - 1)
    shape = g.shape(x)[axis:]
    args = [x, g.weights(*shape)]
    if op == "LayerNormalization" and g.chance(0.6):
        args.append(g.weights(*shape))
    g.add(op, args, axis=axis, epsilon=0.1)


def lp_norm(g, op):
    x = g.fresh(low=0.25, high=2)
    rank = len(g.shape(x))
    g.add(op, [x], axis=g.int(-rank, rank - 1), p=g.int(1, 2))


def lrn(g, op):
    x = g.some(rank=4)
    g.add(op, [x], size=g.choose(3, 5), alpha=0.25, beta=0.5, bias=1.5)


def matmul(g, op):
    x = g.some(least=1)
    k, n = g.shape(x)[-1], g.int(1, 6)
    if g.chance(0.3):
        g.add(op, [x, g.weights(k)])
    elif g.chance(0.4) and len(g.shape(x)) > 2:
        g.add(op, [x, g.weights(*g.shape(x)[:-2], k, n)])
    else:
        g.add(op, [x, g.weights(k, n)])


def gemm(g, op):
    m, k, n = (g.int(1, 7) for _ in range(3))
    a, b = g.int(0, 1), g.int(0, 1)
    args = [g.fresh((k, m) if a else (m, k)), g.weights(*((n, k) if b else (k, n)))]
    if g.chance(0.7):
        args.append(g.weights(*g.choose((n,), (m, n), (1, n), (m, 1), ())))
    g.add(op, args, transA=a, transB=b, **({"alpha": 0.5, "beta": 1.5} if g.chance(0.5) else {}))


def einsum(g, op):
    i, j, k, b = (g.int(1, 5) for _ in range(4))
    equation, shapes = g.choose(
        ("ij,jk->ik", [(i, j), (j, k)]), ("bij,bjk->bik", [(b, i, j), (b, j, k)]),
        ("ij->ji", [(i, j)]), ("ij->i", [(i, j)]), ("ii->i", [(i, i)]), ("ij,ij->", [(i, j)] * 2),
        ("i,j", [(i,), (j,)]), ("...ij,jk->...ik", [(b, i, j), (j, k)]),
        ("bhik,bhjk->bhij", [(b, 2, i, k), (b, 2, j, k)]), ("ij,jk,kb->ib",
                                                            [(i, j), (j, k), (k, b)]))
    g.add(op, [g.fresh(s, low=-1, high=1) for s in shapes], equation=equation)


def determinant(g, op):
    n = g.int(1, 4)
    g.add(op, [g.fresh([*g.shape_of(g.int(0, 2), 3), n, n])])


def recurrent(g, op):
    steps, batch, inputs, hidden = g.int(1, 4), g.int(1, 3), g.int(1, 4), g.int(1, 4)
    d, gates = 1, {"RNN": 1, "GRU": 3, "LSTM": 4}[op]  # the reference knows no other direction
    args = [g.fresh([steps, batch, inputs]), g.weights(d, gates * hidden, inputs),
            g.weights(d, gates * hidden, hidden)]
    if g.chance(0.6):
        args.append(g.weights(d, 2 * gates * hidden))
        if g.chance(0.3):
            args += ["", g.weights(d, batch, hidden)]
            if op == "LSTM":
                args += [g.weights(d, batch, hidden)]
    given = {"linear_before_reset": g.int(0, 1)} if op == "GRU" else {}
    g.add(op, args, 2, hidden_size=hidden, **given)


def attention(g, op):
    batch, heads, queries, keys, size = (g.int(1, 3) for _ in range(5))
    size *= 2
    shared = heads if g.chance(0.6) else 1
    q, k, v = (g.fresh([batch, h, n, size]) for h, n in
               ((heads, queries), (shared, keys), (shared, keys)))
    args = [q, k, v]
    if g.chance(0.4):
        args.append(g.either(g.numbers([queries, keys], low=-1, high=1)))
    given = {"is_causal": g.int(0, 1)} if len(args) == 3 else {}
    if g.chance(0.3):
        given["scale"] = 0.5
    if g.chance(0.2):
        given["softcap"] = 2.0
    g.add(op, args, **given)


def rotary(g, op):
    batch, heads, steps, size = g.int(1, 2), g.int(1, 3), g.int(1, 4), 2 * g.int(1, 4)
    angles = g.random.random((batch, steps, size // 2))
    args = [g.fresh([batch, heads, steps, size]), g.either(np.cos(angles)), g.either(np.sin(angles))]
    g.add(op, args, interleaved=g.int(0, 1))


def resize(g, op):
    rank = g.int(1, 2)
    x = g.fresh([g.int(1, 2), g.int(1, 3), *[g.int(1, 5) for _ in range(rank)]])
    mode = g.choose("nearest", "linear", "cubic") if rank == 2 else g.choose("nearest", "linear")
    where = g.choose("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel")
    given = {"mode": mode, "coordinate_transformation_mode": where}
    if mode == "nearest":
        given["nearest_mode"] = g.choose("floor", "ceil", "round_prefer_floor",
                                         "round_prefer_ceil")
    if g.opset >= 18 and mode != "nearest" and g.chance(0.3):
        given["antialias"] = 1
    if mode == "cubic":
        given |= {"cubic_coeff_a": g.choose(-0.5, -0.75), "exclude_outside": g.int(0, 1)}
    if g.chance(0.5):
        scales = [1, 1] + [g.choose(0.5, 1, 2, 3, 1.5) for _ in range(rank)]
        if any(int(n * s) < 1 for n, s in zip(g.shape(x), scales)):
            raise Unfit("nothing left")
        g.add(op, [x, "", g.constant(scales, np.float32)], **given)
    else:
        sizes = list(g.shape(x)[:2]) + [g.int(1, 8) for _ in range(rank)]
        g.add(op, [x, "", "", g.constant(sizes)], **given)


def affine(g, op):
    n, size = g.int(1, 2), [g.int(2, 5) for _ in range(g.int(2, 3))]
    theta = g.fresh([n, len(size), len(size) + 1], low=-1, high=1)
    g.add(op, [theta, g.constant([n, g.int(1, 3), *size])], align_corners=g.int(0, 1))


def grid_sample(g, op):
    n, c = g.int(1, 2), g.int(1, 3)
    x = g.fresh([n, c, g.int(2, 5), g.int(2, 5)])
    grid = g.either(g.random.uniform(-1.2, 1.2, (n, g.int(1, 4), g.int(1, 4), 2)))
    new = g.opset >= 20
    g.add(op, [x, grid], mode=g.choose(*(("linear", "cubic") if new else ("bilinear", "bicubic"))),
          padding_mode=g.choose("zeros", "border", "reflection"), align_corners=g.int(0, 1))


def roi_align(g, op):
    x = g.fresh([g.int(1, 2), g.int(1, 3), 6, 7])
    count = g.int(1, 3)
    corner = g.random.uniform(0, 2.5, (count, 2))
    boxes = np.concatenate([corner, corner + g.random.uniform(0.5, 3, (count, 2))], axis=1)
    batch = g.constant(g.random.integers(0, g.shape(x)[0], count))
    given = {"output_height": g.int(1, 3), "output_width": g.int(1, 3), "sampling_ratio": g.int(0, 2),
             "spatial_scale": 1.0}
    if g.opset >= 16:
        given["coordinate_transformation_mode"] = g.choose("half_pixel", "output_half_pixel")
    g.add(op, [x, g.either(boxes), batch], mode=g.choose("avg"), **given)


def suppression(g, op):
    n, classes = g.int(1, 6), g.int(1, 2)
    corner = g.random.integers(0, 6, (1, n, 2))
    boxes = np.concatenate([corner, corner + g.random.integers(1, 5, (1, n, 2))], axis=2)
    scores = g.random.permutation(classes * n).reshape(1, classes, n) / 16
    args = [g.either(boxes), g.either(scores), g.constant([g.int(1, 4)]),
            g.constant([g.choose(0.3, 0.55)], np.float32), g.constant([0.03], np.float32)]
    g.add(op, args, center_point_box=0)


def deform(g, op):
    c, size = g.int(1, 2), g.int(3, 5)
    x, kernel = g.fresh([1, c, size, size]), g.int(1, 2)
    out = size - kernel + 1
    offset = g.either(g.random.uniform(-0.9, 0.9, (1, 2 * kernel * kernel, out, out)))
    args = [x, g.weights(g.int(1, 3), c, kernel, kernel), offset]
    if g.chance(0.5):
        args += [g.weights(g.shape(args[1])[0])]
    g.add(op, args, kernel_shape=[kernel, kernel], pads=[0, 0, 0, 0])


def columns(g, op):
    size, block = [g.int(2, 5), g.int(2, 5)], [g.int(1, 2), g.int(1, 2)]
    count = int(np.prod([s - b + 1 for s, b in zip(size, block)]))
    x = g.fresh([1, g.int(1, 2) * block[0] * block[1], count])
    g.add(op, [x, g.constant(size), g.constant(block)])


def causal_conv(g, op):
    channels, kernel = g.int(1, 4), g.int(1, 4)
    x, w = g.fresh([g.int(1, 2), channels, g.int(1, 5)]), g.weights(channels, 1, kernel)
    g.add(op, [x, w] + ([g.weights(channels)] if g.chance(0.5) else []), 2,
          activation=g.choose("none", "silu"))


def linear_attention(g, op):
    batch, heads, steps, size = g.int(1, 2), g.int(1, 2), g.int(1, 4), g.int(1, 4)
    args = [g.fresh([batch, steps, heads * size], low=-1, high=1) for _ in range(3)]
    g.add(op, args, 2, q_num_heads=heads, kv_num_heads=heads, update_rule="linear", scale=0.5)


MAKERS = {
    "Conv": conv, "ConvTranspose": conv_transpose, "MaxPool": pool, "AveragePool": pool,
    "LpPool": pool, "MaxUnpool": pool_indices, "GlobalAveragePool": global_pool,
    "GlobalMaxPool": global_pool, "BatchNormalization": batch_norm,
    "InstanceNormalization": instance_norm, "GroupNormalization": group_norm,
    "MeanVarianceNormalization": mean_variance, "LayerNormalization": layer_norm,
    "RMSNormalization": layer_norm, "LpNormalization": lp_norm, "LRN": lrn, "MatMul": matmul,
    "Gemm": gemm, "Einsum": einsum, "Det": determinant,
    **dict.fromkeys(["RNN", "GRU", "LSTM"], recurrent),
    "Attention": attention, "RotaryEmbedding": rotary, "Resize": resize, "AffineGrid": affine,
    "GridSample": grid_sample, "RoiAlign": roi_align, "NonMaxSuppression": suppression,
    "DeformConv": deform, "Col2Im": columns, "CausalConvWithState": causal_conv,
    "LinearAttention": linear_attention,
}
