"""Persistent kernels on a GPU: networks at batch 1 in bf16 as a monolith, as kernels, and by peers; how much of the
time blocks wait for each other (stamps in the kernel), and what share of copy bandwidth a decode step reads its
weights with.
"""
import json
import math
import pathlib
import sys

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import gpu_targets

ROOT = pathlib.Path(__file__).resolve().parent.parent
# In this order as long as time is left: one of each kind first.
NETWORKS = ["gpt2-decode", "llama-like", "opt-125m-decode", "bert-base", "vit-b16", "clip-text", "t5-decoder",
            "t5-encoder", "bert-large", "t5-base-encoder", "t5-base-decoder"]
LARGE = ["opt-125m-decode", "clip-text", "bert-large", "t5-base-encoder", "t5-base-decoder"]
DECODES = ["gpt2-decode", "llama-like", "opt-125m-decode"]
NO_RING = "monolith, no ring"  # weights that stages read through L2 only
OVER_PEERS, OF_BANDWIDTH, NOT_WAITING = 1.5, 0.75, 0.95


def llama_like(folder, layers=16, width=2048, heads=32, hidden=8192, past=255, words=32000):
    """One token of a Llama-like network with a KV cache (1.2 G weights in all): random bf16 weights."""
    rng = np.random.default_rng(7)
    each, nodes, weights, inputs, outputs = width // heads, [], [], [], []

    def constant(name, values, kind):
        weights.append(numpy_helper.from_array(np.asarray(values, kind), name))
        return name

    def weight(name, rows, columns):
        bits = (rng.standard_normal((rows, columns), np.float32) * np.float32(rows ** -0.5)).view(np.uint32) >> 16
        tensor = TensorProto(name=name, data_type=TensorProto.BFLOAT16, dims=[rows, columns])
        tensor.raw_data = bits.astype(np.uint16).tobytes()
        weights.append(tensor)
        return name

    def node(op, *arguments, **attributes):
        name = f"t{len(nodes)}"
        nodes.append(helper.make_node(op, list(arguments), [name], **attributes))
        return name

    def scalar(name, value):
        return node("Cast", constant(name, value, np.float32), to=TensorProto.BFLOAT16)

    def port(ports, name, shape):
        ports.append(helper.make_tensor_value_info(name, TensorProto.BFLOAT16, shape))
        return name

    def norm(x):
        square = node("ReduceMean", node("Mul", x, x), keepdims=1, axes=[-1])
        return node("Div", x, node("Sqrt", node("Add", square, small)))

    small, scale = scalar("epsilon", 1e-5), scalar("scale", each ** -0.5)
    split, joined = constant("split", [1, heads, each], np.int64), constant("joined", [1, width], np.int64)
    x = port(inputs, "x", [1, width])
    for l in range(layers):
        h = norm(x)
        q, k, v = (node("Transpose", node("Reshape", node("MatMul", h, weight(f"{n}{l}", width, width)), split),
                        perm=[1, 0, 2]) for n in "qkv")
        k = node("Concat", port(inputs, f"past_k{l}", [heads, past, each]), k, axis=1)
        v = node("Concat", port(inputs, f"past_v{l}", [heads, past, each]), v, axis=1)
        scores = node("Mul", node("MatMul", q, node("Transpose", k, perm=[0, 2, 1])), scale)
        mixed = node("MatMul", node("Softmax", scores, axis=-1), v)
        flat = node("Reshape", node("Transpose", mixed, perm=[1, 0, 2]), joined)
        x = node("Add", x, node("MatMul", flat, weight(f"o{l}", width, width)))
        h = norm(x)
        gate, up = (node("MatMul", h, weight(f"{n}{l}", width, hidden)) for n in ("gate", "up"))
        acted = node("Mul", node("Mul", gate, node("Sigmoid", gate)), up)
        x = node("Add", x, node("MatMul", acted, weight(f"down{l}", hidden, width)))
    nodes.append(helper.make_node("MatMul", [norm(x), weight("words", width, words)], ["y"]))
    port(outputs, "y", [1, words])
    graph = helper.make_graph(nodes, "llama-like", inputs, outputs, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(model, folder / "model.onnx", save_as_external_data=True, location="weights", size_threshold=1024)
    return folder / "model.onnx"


def weight_bytes(path):
    model = onnx.load(path, load_external_data=False)
    return sum(2 * math.prod(t.dims) for t in model.graph.initializer
               if t.data_type in (TensorProto.FLOAT, TensorProto.BFLOAT16, TensorProto.FLOAT16))


def waiting(trace):
    """The share of the blocks' time that they wait for each other."""
    events = [e for e in json.loads(trace.read_text())["traceEvents"] if e["ph"] == "X"]
    length = max((e["ts"] + e["dur"] for e in events), default=0)
    waits = sum(e["dur"] for e in events if e["name"] == "wait")
    return waits / (length * len({e["tid"] for e in events})) if length else None


def model_of(run, network, clock, scale):
    """The network's file, made where it is not there; None, and why."""
    if network == "llama-like":
        small = {} if scale == 1 else {"layers": 2, "width": 64, "heads": 4, "hidden": 128, "words": 96}
        return llama_like(ROOT / "build/acceptance/llama-like", **small), ""
    if network not in LARGE:
        return ROOT / f"build/zoo/{network}/model.onnx", ""
    code, _, error, _ = run([sys.executable, "zoo/large.py", "build/large", network], clock.left())
    return (ROOT / f"build/large/{network}/model.onnx" if code == 0 else None), gpu_targets.reason(error)


def measure(run, heddle, clock, arguments):
    rows = []
    for network in NETWORKS:
        row = {"model": network, "ms": {}, "peers": {}}
        rows.append(row)
        if clock.left() < 30:
            row["error"] = "no time left"
            continue
        trace = ROOT / f"build/acceptance/{network}-trace.json"
        model, row["error"] = model_of(run, network, clock, arguments.scale)
        if model is None:
            continue
        del row["error"]
        peers = [p for p in arguments.peers if p != "torch"]
        ways = [("monolith", []), ("kernels", [])] + ([(NO_RING, ["--ring", "off"])] if network in DECODES else [])
        for way, more in ways:
            command = [heddle, "bench", model, "--device", "cuda", "--precision", "bf16", "--mode", way.split(",")[0],
                       "--json", "--duration", arguments.duration, "--rounds", 4, "--budget", arguments.budget, *more]
            if way == "monolith" and peers:
                command += ["--vs", ",".join(peers), "--peer-timeout", 90, "--venv",
                            pathlib.Path(sys.executable).parent.parent]
            code, out, error, _ = run(command, min(150, clock.left()))
            if code != 0:
                row |= {} if way == NO_RING else {"error": gpu_targets.reason(error)}
                continue
            found = json.loads(out)
            row["ms"][way] = found["heddle"]["median_ms"]
            row["peers"] |= found.get("peers", {})
        code, _, error, _ = run([heddle, "profile", model, "--device", "cuda", "--precision", "bf16", "--mode",
                                 "monolith", "--iterations", 10, "--trace", trace], min(60, clock.left()))
        row["waiting"] = waiting(trace) if code == 0 else None
        row["weight_bytes"] = weight_bytes(model) if network in DECODES else None
        print(f"monolith {network}: {row.get('error') or row['ms']}", flush=True)
    return rows


def verdicts(rows, copy_gbs, real=True):
    def known(values):
        return [v if real else None for v in values]

    def of_bandwidth(row):
        ms = row["ms"].get("monolith")
        return row["weight_bytes"] / ms / 1e6 / copy_gbs if ms and copy_gbs and row.get("weight_bytes") else None

    ratios = [gpu_targets.best_ratio(r) for r in rows]
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios and all(ratios) else None
    return [gpu_targets.verdict("monoliths at batch 1 in bf16, geometric mean over the best peer", OVER_PEERS, known([mean])),
            gpu_targets.verdict("decode steps, weight bytes as share of copy bandwidth", OF_BANDWIDTH,
                                known([of_bandwidth(r) for r in rows if r["model"] in DECODES])),
            gpu_targets.verdict("monoliths, share of time that blocks do not wait", NOT_WAITING,
                                known([None if r.get("waiting") is None else 1 - r["waiting"] for r in rows]))]


def markdown(rows):
    lines = ["", "| network, bf16, batch 1 | monolith ms | without a ring | kernels ms | waiting | peers |", "|---" * 6 + "|"]
    for r in rows:
        peers = ", ".join(f"{n} {p['error'][:40] if p.get('error') else format(p['ratio'], '.2f') + '×'}"
                          for n, p in r["peers"].items())
        lines.append(f"| {r['model']} | " + (f"{r['error'].replace('|', '/')[:80]} | | | | |" if r.get("error") else
                     f"{r['ms']['monolith']:.3f} | {gpu_targets.number(r['ms'].get(NO_RING))} | "
                     f"{r['ms']['kernels']:.3f} | "
                     f"{gpu_targets.number(r['waiting'])} | {peers} |"))
    return lines
