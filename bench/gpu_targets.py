"""The GPU's targets that are no networks: bandwidth of memory-bound kernels, and matrix products.

Measured by gpu_acceptance.py: Heddle through its `bench`, PyTorch (cuBLASLt) in this process as a CUDA
graph, in turns. Each row says what it is held to, and whether that is reached, missed or unproven.
"""

import json
import statistics

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

SHARE_OF_COPY, SHARE_OF_CUBLAS, SHARE_OF_LAYERS, OVER_PEERS = 0.85, 0.85, 1.0, 1.3
TYPES = {"f32": (TensorProto.FLOAT, 4), "tf32": (TensorProto.FLOAT, 4), "bf16": (TensorProto.BFLOAT16, 2)}
ROUNDS = 3


def softmax(node, x, shape):
    return [node("Softmax", [x], ["y"], axis=-1)], []


def layer_norm(node, x, shape):
    return [node("LayerNormalization", [x, "g", "b"], ["y"], axis=-1)], ["g", "b"]


def gelu_residual(node, x, shape):
    return [node("Gelu", [x], ["e"]), node("Add", ["e", x], ["y"])], []


def row_sums(node, x, shape):
    return [node("Mul", [x, x], ["s"]), node("ReduceSum", ["s", "last"], ["y"], keepdims=0)], []


def column_sums(node, x, shape):
    return [node("Mul", [x, x], ["s"]), node("ReduceSum", ["s", "first"], ["y"], keepdims=0)], []


# Beyond the L2 caches of all GPUs: 256 MB and more of input.
MEMORY_BOUND = [(softmax, "f32", [16384, 4096]), (softmax, "bf16", [32768, 8192]),
                (layer_norm, "f32", [65536, 1024]), (layer_norm, "bf16", [65536, 4096]),
                (gelu_residual, "f32", [16384, 8192]), (gelu_residual, "bf16", [32768, 8192]),
                (row_sums, "f32", [16384, 8192]), (column_sums, "f32", [65536, 1024]),
                (column_sums, "bf16", [65536, 4096])]
# rows, columns, depth, what follows. Layers of BERT-large, ViT-L and Llama-7B.
PRODUCTS = [("bf16", 4096, 4096, 4096, ""), ("tf32", 4096, 4096, 4096, ""),
            ("bf16", 512, 4096, 1024, "bias gelu"), ("bf16", 512, 1024, 4096, "bias residual"),
            ("bf16", 4096, 4096, 1024, "bias gelu"), ("bf16", 4096, 1024, 4096, "bias residual"),
            ("bf16", 2048, 4096, 4096, "residual"), ("bf16", 2048, 11008, 4096, "silu"),
            ("tf32", 4096, 4096, 1024, "bias gelu")]


def save(path, nodes, inputs, output, constants, opset=20):
    def port(name, kind, shape):
        return helper.make_tensor_value_info(name, kind, shape)
    graph = helper.make_graph(nodes, "g", [port(*i) for i in inputs], [port(*output)], constants)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)]), path)
    return path


def constant(name, kind, shape):
    values = np.random.default_rng(1).normal(size=shape).astype(np.float32)
    if kind == TensorProto.FLOAT:
        return numpy_helper.from_array(values, name)
    return helper.make_tensor(name, kind, shape, (values.view(np.uint32) >> 16).astype(np.uint16).tobytes(), raw=True)


def memory_bound(path, make, precision, shape):
    """The model, and the bytes that it has to move."""
    kind, size = TYPES[precision]
    nodes, weights = make(helper.make_node, "x", shape)
    reduced = {row_sums: [shape[0]], column_sums: [shape[1]]}.get(make, shape)
    constants = [constant(n, kind, [shape[-1]]) for n in weights]
    constants += [numpy_helper.from_array(np.array([axis], np.int64), n) for n, axis in (("first", 0), ("last", 1))
                  if any(n in node.input for node in nodes)]
    save(path, nodes, [("x", kind, shape)], ("y", kind, reduced), constants)
    return size * (int(np.prod(shape)) + int(np.prod(reduced)))


def product(path, precision, m, n, k, after):
    kind, node = TYPES[precision][0], helper.make_node
    inputs, value, nodes = [("x", kind, [m, k])], "p", [node("MatMul", ["x", "w"], ["p"])]
    constants = [constant("w", kind, [k, n])]
    for what in after.split():
        new = what + "_out"
        if what == "bias":
            constants.append(constant("b", kind, [n]))
            nodes.append(node("Add", [value, "b"], [new]))
        elif what == "residual":
            inputs.append(("r", kind, [m, n]))
            nodes.append(node("Add", [value, "r"], [new]))
        elif what == "gelu":
            nodes.append(node("Gelu", [value], [new]))
        elif what == "silu":
            nodes += [node("Sigmoid", [value], ["gate"]), node("Mul", [value, "gate"], [new])]
        value = new
    nodes.append(node("Identity", [value], ["y"]))
    return save(path, nodes, inputs, ("y", kind, [m, n]), constants)


class Torch:
    """PyTorch on the GPU, or why there is none."""

    def __init__(self):
        self.torch, self.reason = None, ""
        try:
            import torch
            if not torch.cuda.is_available():
                raise ImportError("torch.cuda.is_available() is false")
            self.torch = torch
        except Exception as problem:  # a broken installation raises what it likes
            self.reason = f"no PyTorch on a GPU: {problem}"

    def milliseconds(self, function, runs=30):
        """Median of replays of a CUDA graph."""
        torch = self.torch
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(3):
                function()
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            function()
        times = []
        for _ in range(runs):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end))
        return statistics.median(times)

    def copy_gbs(self, megabytes):
        a = self.torch.empty(megabytes << 20, dtype=self.torch.uint8, device="cuda")
        b = self.torch.empty_like(a)
        return 2 * a.numel() / self.milliseconds(lambda: b.copy_(a)) / 1e6

    def product(self, precision, m, n, k, after):
        """The fastest way of the library: alone, or with its own epilogue where that fits."""
        torch = self.torch
        torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
        dtype = torch.bfloat16 if precision == "bf16" else torch.float32

        def new(*shape):
            return torch.randn(*shape, dtype=dtype, device="cuda")
        x, w, b, r = new(m, k), new(k, n), new(n), new(m, n)
        after = after.split()

        def plain():
            y = torch.addmm(b, x, w) if "bias" in after else torch.matmul(x, w)
            if "gelu" in after:
                y = torch.nn.functional.gelu(y)
            if "silu" in after:
                y = torch.nn.functional.silu(y)
            return y + r if "residual" in after else y
        ways = [plain]
        if after == ["residual"]:
            ways.append(lambda: torch.addmm(r, x, w))
        return lambda: min(self.milliseconds(way) for way in ways)


def heddle_ms(run, heddle, model, precision, clock, budget):
    """(median of a run with inputs and outputs on the device, "") or (None, why not)."""
    command = [heddle, "bench", model, "--device", "cuda", "--json", "--duration", 0.3, "--rounds", 3, "--budget", budget]
    if precision == "tf32":
        command += ["--precision", "tf32"]
    code, out, error, _ = run(command, min(120, clock.left()))
    if code == 0:
        return json.loads(out)["heddle"]["median_ms"], ""
    return None, reason(error)


def reason(error):
    """The line of a command's messages that says why it failed."""
    lines = error.strip().splitlines() or ["no message"]
    if "--precision" in lines[0]:
        return "skipped: " + lines[0]
    return next((line for line in lines if "error" in line), lines[-1])


def in_turns(ours, theirs):
    """Medians over rounds in which both take their turn; `theirs` may be None."""
    found = ([], [])
    for _ in range(ROUNDS if theirs else 1):
        ms, why = ours()
        if ms is None:
            return None, None, why
        found[0].append(ms)
        if theirs:
            found[1].append(theirs())
    return statistics.median(found[0]), statistics.median(found[1]) if theirs else None, ""


def measure(run, heddle, folder, clock, arguments):
    """Bandwidth of copies, memory-bound kernels and products; `scale` divides all sizes."""
    torch, scale, rows = Torch(), arguments.scale, []
    found = {"copy_gbs": None, "note": torch.reason, "scale": scale, "memory_bound": [], "products": rows}
    if torch.torch:
        found["copy_gbs"] = torch.copy_gbs(max(1, 1024 // scale))
    for make, precision, shape in MEMORY_BOUND:
        row = {"kernel": make.__name__, "precision": precision, "shape": [max(1, s // scale) for s in shape]}
        found["memory_bound"].append(row)
        if clock.left() < 15:
            row["error"] = "no time left"
            continue
        model = folder / f"{make.__name__}-{precision}.onnx"
        row["bytes"] = memory_bound(model, make, precision, row["shape"])
        row["ms"], row["error"] = heddle_ms(run, heddle, model, precision, clock, arguments.budget)
        if row["ms"]:
            row["gbs"] = row["bytes"] / row["ms"] / 1e6
            row["share_of_copy"] = row["gbs"] / found["copy_gbs"] if found["copy_gbs"] else None
    for precision, m, n, k, after in PRODUCTS:
        m, n, k = (max(16, s // scale) for s in (m, n, k))
        row = {"precision": precision, "rows": m, "columns": n, "depth": k, "epilogue": after}
        rows.append(row)
        if clock.left() < 15:
            row["error"] = "no time left"
            continue
        model = product(folder / f"product-{precision}-{m}x{n}x{k}-{after.replace(' ', '-')}.onnx", precision, m, n, k,
                        after)
        theirs = torch.product(precision, m, n, k, after) if torch.torch else None
        row["ms"], row["cublaslt_ms"], row["error"] = in_turns(
            lambda: heddle_ms(run, heddle, model, precision, clock, arguments.budget), theirs)
        if row["ms"]:
            row["tflops"] = 2 * m * n * k / row["ms"] / 1e9
            row["over_cublaslt"] = row["cublaslt_ms"] / row["ms"] if row["cublaslt_ms"] else None
    return found


def best_ratio(row):
    """The least ratio to peers that compute the same; None where torch.compile is not one of them: to win against the
    others alone proves little."""
    good = {n: p["ratio"] for n, p in row.get("peers", {}).items() if not p.get("error") and p.get("agrees", True)}
    return min(good.values()) if "torch-compile" in good else None


def verdict(name, wanted, values):
    """`values`: what was measured, None where it was not. The least counts."""
    known = [v for v in values if v is not None]
    state = "missed" if any(v < wanted for v in known) else "reached" if known and len(known) == len(values) else "unproven"
    return {"target": name, "wanted": wanted, "found": min(known) if known else None, "measured": len(known),
            "of": len(values), "state": state}


def verdicts(found, mean_over_peers):
    """The targets of memory-bound kernels, products and networks, in that order. Sizes that were divided
    prove nothing."""
    real = found["scale"] == 1

    def values(rows, key):
        return [row.get(key) if real else None for row in rows]
    bf16 = [r for r in found["products"] if r["precision"] == "bf16"]
    return [verdict("memory-bound stitched kernels, share of copy bandwidth", SHARE_OF_COPY,
                    values(found["memory_bound"], "share_of_copy")),
            verdict("bf16 product of 4096^3, share of cuBLASLt", SHARE_OF_CUBLAS,
                    values([r for r in bf16 if not r["epilogue"]], "over_cublaslt")),
            verdict("bf16 products of transformer layers with epilogues, over cuBLASLt", SHARE_OF_LAYERS,
                    values([r for r in bf16 if r["epilogue"]], "over_cublaslt")),
            verdict("geometric mean over the zoo at batch 1, over the best peer", OVER_PEERS, [mean_over_peers])]


def number(value, form="{:.2f}"):
    return "–" if value is None else form.format(value)


def markdown(found, targets):
    lines = ["", "| target | wanted | found | |", "|---|---|---|---|"]
    lines += [f"| {t['target']} | ≥ {t['wanted']} | {number(t['found'])} | {t['state']} ({t['measured']} of {t['of']} "
              "measured) |" for t in targets]
    lines += ["", f"Copies: {number(found['copy_gbs'], '{:.0f}')} GB/s{'; ' + found['note'] if found['note'] else ''}.",
              "", "| memory-bound kernel | precision | shape | ms | GB/s | share of copy |", "|---" * 6 + "|"]
    for r in found["memory_bound"]:
        lines.append(f"| {r['kernel']} | {r['precision']} | {'×'.join(map(str, r['shape']))} | " +
                     (f"{r['ms']:.4f} | {r['gbs']:.0f} | {number(r['share_of_copy'])} |" if r.get("ms") else
                      f"{r['error'].replace('|', '/')[:80]} | | |"))
    lines += ["", "| product | precision | epilogue | Heddle ms | TFLOP/s | cuBLASLt ms | over cuBLASLt |", "|---" * 7 + "|"]
    for r in found["products"]:
        lines.append(f"| {r['rows']}×{r['columns']}×{r['depth']} | {r['precision']} | {r['epilogue'] or '–'} | " +
                     (f"{r['ms']:.4f} | {r['tflops']:.1f} | {number(r['cublaslt_ms'], '{:.4f}')} | "
                      f"{number(r['over_cublaslt'])} |" if r.get("ms") else f"{r['error'].replace('|', '/')[:80]} | | | |"))
    return lines
