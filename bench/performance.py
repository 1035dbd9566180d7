#!/usr/bin/env python3
"""Measures what docs/performance.md reports and writes it, with docs/performance.json.

Run on an otherwise idle machine, from the checkout, after scripts/test.sh:

    build/venv/bin/python bench/performance.py            # everything, about ten minutes
    build/venv/bin/python bench/performance.py --quick    # short runs, for a look
    build/venv/bin/python bench/performance.py --peers    # against every peer of bench/setup_peers.sh

Every ratio comes from one interleaved run of `heddle bench --vs`. Nothing is kept between calls.
"""
import argparse
import datetime
import json
import math
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent
HEDDLE = ROOT / "build/bin/heddle"
MODELS = ["resnet50", "mobilenetv2", "bert-base", "minilm-l6", "vit-b16", "segformer-b0", "candy",
          "mlp"]
ABLATED = ["mobilenetv2", "minilm-l6", "vit-b16", "segformer-b0", "candy"]
MICRO = [("Matrix products", "gemm_bench"), ("Convolutions (ResNet-50's layers)", "conv_bench"),
         ("Stitched kernels", "stitch_bench")]


def call(*arguments):
    done = subprocess.run([str(a) for a in arguments], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{arguments}: exit code {done.returncode}\n{done.stderr}")
    return done.stdout


def bench(model, threads, duration, *flags):
    return json.loads(call(HEDDLE, "bench", f"build/zoo/{model}", "--threads", threads, "--json",
                           "--duration", duration, *flags))


def compile_seconds(model):
    """First and second compile (program cache), with a cache folder of its own."""
    cache = ROOT / "build/performance-cache"
    subprocess.run(["rm", "-rf", cache], check=True)
    artefact = cache / "model.heddle"
    times = []
    for _ in range(2):
        cache.mkdir(exist_ok=True)
        times.append(json.loads(call(HEDDLE, "compile", f"build/zoo/{model}", "-o", artefact,
                                     "--cache", cache, "--json"))["seconds"])
    loaded = json.loads(call(HEDDLE, "bench", artefact, "--duration", 0.1, "--json"))["heddle"]
    subprocess.run(["rm", "-rf", cache], check=True)
    return times + [loaded["compile_s"] + loaded["load_s"]]


def row_of(result, seconds):
    peers = {name: p for name, p in result["peers"].items() if not p["error"]}
    best = min(peers, key=lambda name: peers[name]["median_ms"])
    h = result["heddle"]
    return {"model": result["model"].split("/")[-1], "precision": result["precision"],
            "threads": result["threads"], "batch": 1, "heddle_ms": h["median_ms"],
            "heddle_ci_ms": h["median_ci_ms"], "best_peer": best,
            "best_peer_ratio": peers[best]["ratio"], "kernels": h["kernels"],
            "compile_s": seconds[0], "second_compile_s": seconds[1], "load_s": seconds[2],
            "arena_mb": h["arena_mb"],
            "peers": {name: {k: p.get(k) for k in ("median_ms", "median_ci_ms", "ratio", "version",
                                                   "difference", "error")}
                      for name, p in result["peers"].items()}}


def geometric_mean(values):
    return math.exp(sum(map(math.log, values)) / len(values))


def model_tables(data):
    out = []
    for threads in sorted({r["threads"] for r in data["rows"]}, reverse=True):
        rows = [r for r in data["rows"] if r["threads"] == threads]
        version = rows[0]["peers"][rows[0]["best_peer"]]["version"]
        out += [f"\n### f32, batch 1, {threads} thread{'s' if threads > 1 else ''}, "
                f"against ONNX Runtime {version}\n",
                "| model | Heddle ms (95 % interval) | ONNX Runtime ms | ratio | kernels | outputs differ by |",
                "|---|---|---|---|---|---|"]
        for r in rows:
            p = r["peers"][r["best_peer"]]
            low, high = r["heddle_ci_ms"]
            out.append(f"| {r['model']} | {r['heddle_ms']:.3f} ({low:.3f}–{high:.3f}) | "
                       f"{p['median_ms']:.3f} | **{p['ratio']:.2f}×** | {r['kernels']} | "
                       f"{p['difference']:.0e} of the scale |")
        mean = geometric_mean([r["best_peer_ratio"] for r in rows])
        out.append(f"| geometric mean | | | **{mean:.2f}×** | | |")
    return out


def compile_table(data):
    out = ["\n## Compiling and loading\n",
           "No budget (`--budget none`), empty cache; then the same again; then the artefact.\n",
           "| model | compile s | second compile s | load artefact ms | arena MB |", "|---|---|---|---|---|"]
    seen = set()
    for r in data["rows"]:
        if r["model"] not in seen:
            out.append(f"| {r['model']} | {r['compile_s']:.2f} | {r['second_compile_s']:.2f} | "
                       f"{1e3 * r['load_s']:.0f} | {r['arena_mb']:.1f} |")
        seen.add(r["model"])
    return out


def ablation_tables(data):
    out = ["\n## What each idea adds\n",
           "`heddle bench MODEL --ablation`: all steps interleaved in one run; median ms and kernels.\n",
           "| step | " + " | ".join(a["model"] for a in data["ablation"]) + " |",
           "|---" * (1 + len(data["ablation"])) + "|"]
    for i, step in enumerate(data["ablation"][0]["ablation"]):
        cells = [f"{a['ablation'][i]['median_ms']:.2f} ({a['ablation'][i]['kernels']})"
                 for a in data["ablation"]]
        out.append(f"| {step['step']} | " + " | ".join(cells) + " |")
    return out


def write(data, folder):
    (folder / "performance.json").write_text(json.dumps(data, indent=1) + "\n")
    lines = ["# Performance\n", "Made by `bench/performance.py`; do not edit. "
             f"Machine: {data['machine']}. Date: {data['date']}.\n",
             "A ratio is the peer's median over Heddle's, both from the same interleaved run; above 1 "
             "Heddle is faster.", "\n## Models"]
    lines += model_tables(data) + compile_table(data) + ablation_tables(data)
    lines.append("\n## Kernels\n")
    for title, text in data["micro"].items():
        lines += [f"### {title}\n", "```", text.rstrip(), "```\n"]
    (folder / "performance.md").write_text("\n".join(lines) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="short runs")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "docs")
    flags = parser.parse_args()
    duration = 0.5 if flags.quick else 2
    doctor = json.loads(call(HEDDLE, "doctor", "--json"))
    cpu = doctor["cpu"]
    data = {"machine": f"{cpu['name']}, {8 * cpu['vector_bytes']}-bit vectors, {cpu['threads']} threads",
            "date": datetime.date.today().isoformat(), "rows": [], "ablation": [], "micro": {}}
    seconds = {model: compile_seconds(model) for model in MODELS}
    for threads in (2, 1):
        for model in MODELS:
            result = bench(model, threads, duration, "--vs", "ort")
            data["rows"].append(row_of(result, seconds[model]))
            print(f"{model} {threads}: {data['rows'][-1]['best_peer_ratio']:.2f}", flush=True)
    for model in ABLATED:
        result = bench(model, 2, duration / 2, "--ablation")
        data["ablation"].append({"model": model, "ablation": result["ablation"]})
    for title, program in MICRO:
        data["micro"][title] = call(ROOT / "build/bin" / program, 2)
    write(data, flags.out)


if __name__ == "__main__":
    main()
