"""Makers of operators that move, select, order and sum elements."""

import numpy as np

from graph import Unfit


def axis_of(g, x):
    rank = len(g.shape(x))
    return g.int(-rank, rank - 1)


def some_axes(g, x):
    rank = len(g.shape(x))
    axes = [int(a) for a in g.random.permutation(rank)[:g.int(1, rank)]]
    return [a - rank if g.chance(0.3) else a for a in axes]


def any_of(g, least=1):
    """A value of any type."""
    kind = g.choose("f", "f", "f", "i", "b")
    return g.pick(kind, least=least) or g.fresh(g.shape_of(g.int(max(1, least), 4)))


def transpose(g, op):
    x = any_of(g)
    perm = [int(p) for p in g.random.permutation(len(g.shape(x)))]
    g.add(op, [x], exact=True, **({"perm": perm} if g.chance(0.8) else {}))


def reshape(g, op):
    x = any_of(g)
    size = int(np.prod(g.shape(x)))
    first = g.choose(*[d for d in range(1, size + 1) if size % d == 0])
    shape = g.choose([first, -1], [-1], [0, -1], [1, -1, 1, first])
    g.add(op, [x, g.constant(shape)], exact=True)


def flatten(g, op):
    x = any_of(g)
    g.add(op, [x], exact=True, axis=g.int(-len(g.shape(x)), len(g.shape(x))))


def unsqueeze(g, op):
    x = any_of(g)
    rank = len(g.shape(x))
    axes = sorted({g.int(0, rank), g.int(0, rank)})
    if rank + len(axes) > 5:
        raise Unfit("rank")
    g.add(op, [x, g.constant(axes)], exact=True)


def squeeze(g, op):
    shape = g.shape_of()
    shape.insert(g.int(0, len(shape)), 1)
    x = g.fresh(shape, g.choose(np.float32, np.int64))
    ones = [d for d, n in enumerate(shape) if n == 1]
    g.add(op, [x] + ([g.constant([g.choose(*ones)])] if g.chance(0.6) else []), exact=True)


def concat(g, op):
    x = any_of(g)
    g.add(op, [x] * g.int(1, 3), exact=True, axis=axis_of(g, x))


def split(g, op):
    x = any_of(g)
    axis = axis_of(g, x)
    n = g.shape(x)[axis]
    if g.opset >= 18 and g.chance(0.4):
        parts = g.int(1, n)
        g.add(op, [x], -(-n // -(-n // parts)), exact=True, axis=axis, num_outputs=parts)
    elif n > 1:
        first = g.int(1, n - 1)
        g.add(op, [x, g.constant([first, n - first])], 2, exact=True, axis=axis)


def slices(g, op):
    x = any_of(g)
    axis, step = axis_of(g, x), g.choose(1, 1, 2, -1, -2, 3)
    start, end = g.choose(g.int(-6, 6), -2**31), g.choose(g.int(-6, 6), 2**31 - 1, -2**63)
    ints = g.choose(np.int32, np.int64)
    if ints == np.int32 or step > 0:
        end = max(end, -2**31)
    args = [g.constant([v], ints) for v in (start, end, axis, step)]
    g.add(op, [x, *args], exact=True)


def tile(g, op):
    x = any_of(g)
    g.add(op, [x, g.constant(g.random.integers(1, 3, len(g.shape(x))))], exact=True)


def expand(g, op):
    x = any_of(g)
    g.add(op, [x, g.constant(g.choose([g.int(1, 3)] + [1] * len(g.shape(x)), [1]))], exact=True)


def gather(g, op):
    x = any_of(g)
    axis = axis_of(g, x)
    n = g.shape(x)[axis]
    index = g.random.integers(-n, n, g.choose((2,), (2, 2), (), (1, 3)))
    g.add(op, [x, g.either(index, g.choose(np.int32, np.int64))], exact=True, axis=axis)


def gather_nd(g, op):
    x = any_of(g)
    shape = g.shape(x)
    batch = g.int(0, len(shape) - 1)
    depth = g.int(1, len(shape) - batch)
    middle = g.shape_of(g.int(0, 2), 3)
    index = np.stack([g.random.integers(-n, n, [*shape[:batch], *middle])
                      for n in shape[batch:batch + depth]], axis=-1)
    g.add(op, [x, g.either(index, np.int64)], exact=True, batch_dims=batch)


def elements(g, op):
    """GatherElements, ScatterElements and its old name, with positions that differ."""
    x = g.some(least=1)
    axis, shape = axis_of(g, x), g.shape(x)
    index = g.random.permutation(shape[axis])[: max(1, shape[axis] // 2)]
    picked = list(shape)
    picked[axis] = len(index)
    where = np.broadcast_to(index.reshape([-1 if d == axis % len(shape) else 1
                                           for d in range(len(shape))]), picked)
    if g.chance(0.3):
        where = where - shape[axis]
    if op == "GatherElements":
        g.add(op, [x, g.either(where, np.int64)], exact=True, axis=axis)
        return
    kinds = ["none"] + ["add", "mul"] * (g.opset >= 16) + ["max", "min"] * (g.opset >= 18)
    kind = g.choose(*kinds)
    g.add(op, [x, g.either(where, np.int64), g.weights(*picked)], exact=kind != "mul", axis=axis,
          **({"reduction": kind} if kind != "none" else {}))


def scatter_nd(g, op):
    x = g.some(least=1)
    shape = g.shape(x)
    depth = g.int(1, len(shape))
    cells = [list(c) for c in np.ndindex(*shape[:depth])]
    count = g.int(1, min(4, len(cells)))
    index = [cells[i] for i in g.random.permutation(len(cells))[:count]]
    kinds = ["none"] + ["add", "mul"] * (g.opset >= 16) + ["max", "min"] * (g.opset >= 18)
    kind = g.choose(*kinds)
    g.add(op, [x, g.either(index, np.int64), g.weights(count, *shape[depth:])], exact=kind != "mul",
          **({"reduction": kind} if kind != "none" else {}))


def pad(g, op):
    x = g.some(least=1)
    shape, rank = g.shape(x), len(g.shape(x))
    mode = g.choose("constant", "edge", "reflect", *["wrap"] * (g.opset >= 19))
    room = [n - 1 if mode == "reflect" else n for n in shape]
    pads = [g.int(0, min(2, room[d % rank])) for d in range(2 * rank)]
    args = [x, g.constant(pads)]
    if mode == "constant" and g.chance(0.5):
        args.append(g.constant(0.5, np.float32))
        if g.opset >= 18 and g.chance(0.5):
            axes = [int(a) for a in g.random.permutation(rank)[:g.int(1, rank)]]
            args[1] = g.constant([pads[a] for a in axes] + [pads[a + rank] for a in axes])
            args.append(g.constant(axes))
    g.add(op, args, exact=True, mode=mode)


def center(g, op):
    x = g.some(least=1)
    axes = some_axes(g, x)
    g.add(op, [x, g.constant([g.int(1, 6) for _ in axes])], exact=True, axes=axes)


def trilu(g, op):
    x = g.some(least=2)
    args = [x] + ([g.constant(g.int(-3, 3))] if g.chance(0.6) else [])
    g.add(op, args, exact=True, upper=g.int(0, 1))


def eye(g, op):
    x = g.fresh(g.shape_of(2), g.choose(np.float32, np.int64))
    g.add(op, [x], exact=True, k=g.int(-3, 3), **({"dtype": g.choose(1, 6, 7, 11)}
                                                  if g.chance(0.5) else {}))


def one_hot(g, op):
    depth = g.int(2, 5)
    indices = g.either(g.random.integers(-depth, depth, g.shape_of(g.int(1, 3))), np.int64)
    g.add(op, [indices, g.constant(depth), g.constant([0.25, 2], np.float32)], exact=True,
          axis=g.int(-1, 1))


def fill(g, op):
    value = None if g.chance(0.3) else g.numbers([1], g.choose(np.float32, np.int64, np.int32))
    given = {} if value is None else {"value": onnx_tensor(value)}
    g.add(op, [g.constant(g.shape_of())], exact=True, **given)


def onnx_tensor(value):
    from onnx import numpy_helper
    return numpy_helper.from_array(np.asarray(value), "")


def literal(g, op):
    kind = g.choose("value", "value_float", "value_floats", "value_int", "value_ints")
    value = {"value": onnx_tensor(g.numbers(g.shape_of())), "value_float": 0.75,
             "value_floats": [0.5, -1.25], "value_int": 3, "value_ints": [1, -2, 3]}[kind]
    g.add(op, [], exact=True, **{kind: value})


def range_of(g, op):
    dtype = g.choose(np.float32, np.int32, np.int64)
    start, step = g.int(-3, 3), g.choose(1, 2, -1)
    end = start + step * g.int(1, 6)
    g.add(op, [g.constant(v, dtype) for v in (start, end, step)], exact=True)


def shape_of(g, op):
    x = any_of(g)
    ends = {a: g.int(-4, 4) for a in ("start", "end") if g.opset >= 15 and g.chance(0.4)}
    g.add(op, [x], exact=True, **(ends if op == "Shape" else {}))


def reverse(g, op):
    x = g.some(least=2)
    batch = g.int(0, 1)
    lengths = g.random.integers(1, g.shape(x)[1 - batch] + 1, g.shape(x)[batch])
    g.add(op, [x, g.either(lengths, np.int64)], exact=True, batch_axis=batch, time_axis=1 - batch)


def blocks(g, op):
    b = g.choose(2, 3)
    if op == "SpaceToDepth":
        g.add(op, [g.fresh([g.int(1, 2), g.int(1, 3), b * g.int(1, 2), b * g.int(1, 2)])],
              exact=True, blocksize=b)
    else:
        x = g.fresh([g.int(1, 2), b * b * g.int(1, 2), g.int(1, 3), g.int(1, 3)])
        g.add(op, [x], exact=True, blocksize=b, mode=g.choose("DCR", "CRD"))


def compress(g, op):
    x = g.some(least=1)
    axis = axis_of(g, x)
    keep = g.numbers([g.shape(x)[axis]], np.bool_)
    keep[0] = True
    if g.chance(0.3):
        keep = g.numbers([int(np.prod(g.shape(x)))], np.bool_)
        keep[0] = True
        g.add(op, [x, g.either(keep, np.bool_)], exact=True)
        return
    g.add(op, [x, g.either(keep, np.bool_)], exact=True, axis=axis)


def nonzero(g, op):
    g.add(op, [any_of(g)], exact=True)


def unique(g, op):
    x = g.fresh(g.shape_of(g.int(1, 3)), g.choose(np.float32, np.int64), -1, 1)
    axis = {"axis": axis_of(g, x)} if g.chance(0.4) else {}
    g.add(op, [x], g.int(1, 4), exact=True, sorted=g.int(0, 1), **axis)


def top(g, op):
    x = g.some(exact=True, least=1)
    axis = axis_of(g, x)
    g.add(op, [x, g.constant([g.int(1, g.shape(x)[axis])])], 2, exact=True, axis=axis,
          largest=g.int(0, 1), sorted=1)


def arg(g, op):
    x = g.some(exact=True, least=1)
    g.add(op, [x], exact=True, axis=axis_of(g, x), keepdims=g.int(0, 1),
          select_last_index=g.int(0, 1))


def reduce(g, op):
    x = g.bounded(0.25, 2) if op in ("ReduceLogSum", "ReduceProd") else g.some(least=1)
    if op not in ("ReduceLogSum", "ReduceLogSumExp", "ReduceL2") and g.chance(0.15):
        x = g.fresh(dtype=np.int64)  # of others the reference loses the type
    axes, keep = some_axes(g, x), g.int(0, 1)
    exact = op in ("ReduceMax", "ReduceMin")
    if g.opset >= 18 or op == "ReduceSum":
        if g.chance(0.2):
            g.add(op, [x], exact=exact, keepdims=keep, noop_with_empty_axes=g.int(0, 1))
        else:
            g.add(op, [x, g.constant(axes)], exact=exact, keepdims=keep)
    else:
        g.add(op, [x], exact=exact, keepdims=keep, **({"axes": axes} if g.chance(0.8) else {}))


def along(g, op):
    x = g.some(least=1, exact=op == "Hardmax")
    g.add(op, [x], exact=op == "Hardmax", axis=axis_of(g, x))


def scan_sum(g, op):
    x = g.bounded(-1.5, 1.5) if op == "CumProd" else g.some(least=1)
    if len(g.shape(x)) == 0:
        raise Unfit("rank")
    g.add(op, [x, g.constant(axis_of(g, x), g.choose(np.int32, np.int64))],
          exclusive=g.int(0, 1), reverse=g.int(0, 1))


def tensor_scatter(g, op):
    batch, room, width = g.int(1, 3), g.int(3, 6), g.int(1, 4)
    length = g.int(1, room - 1)
    x, update = g.fresh([batch, room, width]), g.fresh([batch, length, width])
    at = [g.int(0, room - length) for _ in range(batch)]
    mode = g.choose("linear", "circular")
    if mode == "circular":
        at = [g.int(0, room - 1) for _ in range(batch)]
    args = [x, update] + ([g.either(at, np.int64)] if g.chance(0.8) else [])
    g.add(op, args, exact=True, axis=1, mode=mode)


REDUCTIONS = ["ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceL1", "ReduceL2",
              "ReduceLogSum", "ReduceLogSumExp", "ReduceProd", "ReduceSumSquare"]
MAKERS = {
    "Transpose": transpose, "Reshape": reshape, "Flatten": flatten, "Unsqueeze": unsqueeze,
    "Squeeze": squeeze, "Concat": concat, "Split": split, "Slice": slices, "Tile": tile,
    "Expand": expand, "Gather": gather, "GatherND": gather_nd, "GatherElements": elements,
    "ScatterElements": elements, "ScatterND": scatter_nd, "Pad": pad, "CenterCropPad": center,
    "Trilu": trilu, "EyeLike": eye, "OneHot": one_hot, "ConstantOfShape": fill,
    "Constant": literal, "Range": range_of, "Shape": shape_of, "Size": shape_of,
    "ReverseSequence": reverse, "DepthToSpace": blocks, "SpaceToDepth": blocks,
    "Compress": compress, "NonZero": nonzero, "Unique": unique, "TopK": top,
    **dict.fromkeys(["ArgMax", "ArgMin"], arg),
    **dict.fromkeys(REDUCTIONS, reduce),
    **dict.fromkeys(["Softmax", "LogSoftmax", "Hardmax"], along),
    **dict.fromkeys(["CumSum", "CumProd"], scan_sum),
    "TensorScatter": tensor_scatter,
}
