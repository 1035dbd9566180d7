#!/usr/bin/env python3
"""Measures what docs/performance.md reports and writes it, from one docs/performance-CPU.json for each
processor on which it has run.

Run on an otherwise idle machine, from the checkout, after scripts/test.sh:

    build/venv/bin/python bench/performance.py            # everything, about ten minutes
    build/venv/bin/python bench/performance.py --quick    # short runs, for a look
    build/venv/bin/python bench/performance.py --peers    # the models again, against every peer that
                                                          # bench/setup_peers.sh installs

Every ratio comes from one interleaved run of `heddle bench --vs`. Nothing is kept between calls, but
--peers (some of them, for some models and thread counts, if named) only replaces that in what is
there, and so do --low (the tables in bf16, in int8 on what zoo/quantise.py makes of the zoo in
build/int8, and f32x8, bf16x8, int8x8: batches of eight that zoo/batched.py makes of them in build/batched
and build/int8-batched), --tuned CACHE (against what `heddle tune --cache CACHE` found), --roofline, --memory
and --kernels.
"""
import argparse
import datetime
import json
import math
import pathlib
import subprocess

import performance_parts as parts

ROOT = pathlib.Path(__file__).resolve().parent.parent
HEDDLE = ROOT / "build/bin/heddle"
MODELS = ["resnet50", "mobilenetv2", "bert-base", "minilm-l6", "vit-b16", "segformer-b0", "candy",
          "mlp"]
ABLATED = ["mobilenetv2", "minilm-l6", "vit-b16", "segformer-b0", "candy"]
PEERS = "ort,openvino,torch,torch-compile,jax,tvm,iree"
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


TIMES = ("compile_s", "second_compile_s", "load_s")
KEPT = ("median_ms", "median_ci_ms", "n", "ratio", "version", "difference", "agrees", "cores", "error")


def row_of(result, rest, others=None):
    """A row of the table; `rest`: what the run did not measure (compile times); `others`: peers that
    another run measured, each ratio within its own run."""
    h = result["heddle"]
    peers = {**(others or {}), **{name: {k: p.get(k) for k in KEPT}
                                  for name, p in result["peers"].items()}}
    fit = [name for name, p in peers.items() if not p["error"] and p.get("agrees", True)]
    if not fit:
        raise SystemExit(f"{result['model']}: no peer ran: {peers}")
    best = min(fit, key=lambda name: peers[name]["ratio"])
    return {"model": result["model"].split("/")[-1], "precision": result["precision"],
            "threads": result["threads"], "batch": 1, "heddle_ms": h["median_ms"],
            "heddle_ci_ms": h["median_ci_ms"], "best_peer": best,
            "best_peer_ratio": peers[best]["ratio"], "kernels": h["kernels"],
            "arena_mb": h["arena_mb"], **rest, "peers": peers}


def geometric_mean(values):
    return math.exp(sum(map(math.log, values)) / len(values))


def model_tables(data):
    out = []
    for threads in sorted({r["threads"] for r in data["rows"]}, reverse=True):
        rows = [r for r in data["rows"] if r["threads"] == threads]
        out += [f"\n### f32, batch 1, {threads} thread{'s' if threads > 1 else ''}\n",
                "| model | Heddle ms (95 % interval) | best peer | its ms | ratio | kernels | outputs differ by |",
                "|---|---|---|---|---|---|---|"]
        for r in rows:
            p = r["peers"][r["best_peer"]]
            out.append(f"| {r['model']} | {ours_beside(p, r)} | "
                       f"{r['best_peer']} {p['version']} | {p['median_ms']:.3f} | "
                       f"**{p['ratio']:.2f}×** | {r['kernels']} | {p['difference']:.0e} of the scale |")
        mean = geometric_mean([r["best_peer_ratio"] for r in rows])
        out.append(f"| geometric mean | | | | **{mean:.2f}×** | | |")
        out += peer_table(rows)
    return out


def ours_beside(peer, row):
    """Heddle's median of the run that measured the peer; its interval where that is the row's last."""
    ms = peer["median_ms"] / peer["ratio"]
    low, high = row["heddle_ci_ms"]
    return f"{ms:.3f}" + (f" ({low:.3f}–{high:.3f})" if abs(ms / row["heddle_ms"] - 1) < 1e-6 else "")


def peer_table(rows):
    """Every peer's ratio; what could not run, and why, below."""
    names = [name for name in PEERS.split(",") if any(name in r["peers"] for r in rows)]
    if len(names) < 2:
        return []
    versions = {name: p["version"] for r in rows for name, p in r["peers"].items() if p["version"]}
    out = ["\nEach peer's median over Heddle's (TVM untuned):\n",
           "| model | " + " | ".join(f"{n} {versions.get(n, '')}" for n in names) + " |",
           "|---" * (1 + len(names)) + "|"]
    errors = []
    for r in rows:
        cells = []
        for name in names:
            p = r["peers"].get(name)
            if p is None:
                cells.append("not measured")
            elif p["error"]:
                errors.append(f"- {name} on {r['model']}: {p['error']}")
                cells.append("error")
            else:
                cells.append(f"{p['ratio']:.2f}×" + ("" if p.get("agrees", True) else " (other outputs)"))
        out.append(f"| {r['model']} | " + " | ".join(cells) + " |")
    for name in names:
        ratios = [r["peers"][name]["ratio"] for r in rows
                  if name in r["peers"] and not r["peers"][name]["error"]]
        versions[name] = f"{geometric_mean(ratios):.2f}×" if ratios else "–"
    out.append("| geometric mean | " + " | ".join(versions[n] for n in names) + " |")
    return out + [""] + errors


# Of the frameworks, these compute in bf16 on a CPU; these run quantised models in int8.
LOW = {"bf16": "openvino,torch,torch-compile", "int8": "ort,openvino", "f32": "ort,openvino"}
BATCH = 8


def folders_of(precision, batch):
    """{model: folder}: all of the zoo, or what zoo/quantise.py and zoo/batched.py have made of it."""
    parts = ["int8"] * (precision == "int8") + ["batched"] * (batch > 1)
    folder, suffix = "-".join(parts) or "zoo", "-int8" * (precision == "int8") + f"-b{batch}" * (batch > 1)
    return {made.name.removesuffix(suffix): f"build/{folder}/{made.name}"
            for made in sorted((ROOT / "build" / folder).glob(f"*{suffix}"))}


def measure_low(flags, data):
    """Each precision against the peers that have it, in place of older rows."""
    rows = data["low"]
    for name in flags.low.split(","):
        precision, batch = name.removesuffix("x8"), BATCH if name.endswith("x8") else 1
        folders = folders_of(precision, batch)
        if flags.models != ",".join(MODELS):
            folders = {m: path for m, path in folders.items() if m in flags.models.split(",")}
        for threads in map(int, flags.threads.split(",")):
            for model, path in folders.items():
                asked = [] if precision == "int8" else ["--precision", precision]
                result = json.loads(call(HEDDLE, "bench", path, "--threads", threads, "--json",
                                         "--duration", flags.duration, "--vs",
                                         flags.peers or LOW[precision],
                                         "--peer-timeout", flags.peer_timeout, *asked))
                key = {"model": model, "precision": precision, "threads": threads, "batch": batch}
                rows[:] = [r for r in rows if any(r[k] != v for k, v in key.items())]
                rows.append(low_row(key, result))
                print(f"{model} {precision} {threads}: {rows[-1]['best_peer_ratio']}", flush=True)
                write(data, flags.out)


def low_row(key, result):
    """Outputs are compared, but not judged: rounding to few bits has steps."""
    h = result["heddle"]
    peers = {name: {k: p.get(k) for k in KEPT} for name, p in result["peers"].items()}
    fit = [name for name, p in peers.items() if not p["error"]]
    best = min(fit, key=lambda name: peers[name]["ratio"]) if fit else None
    return {**key, "heddle_ms": h["median_ms"], "heddle_ci_ms": h["median_ci_ms"],
            "best_peer": best, "best_peer_ratio": peers[best]["ratio"] if fit else None,
            "kernels": h["kernels"], "peers": peers}


def low_tables(rows):
    out = []
    for kind in sorted({(r["precision"], r["batch"], r["threads"]) for r in rows}):
        precision, batch, threads = kind
        here = [r for r in rows if (r["precision"], r["batch"], r["threads"]) == kind]
        names = [n for n in PEERS.split(",") if any(n in r["peers"] for r in here)]
        out += [f"\n### {precision}, batch {batch}, {threads} thread{'s' if threads > 1 else ''}\n",
                "Medians in ms, each peer's over Heddle's, and how far its outputs are from Heddle's.\n",
                "| model | Heddle ms | " + " | ".join(names) + " | best |",
                "|---" * (3 + len(names)) + "|"]
        for r in here:
            cells = [low_cell(r["peers"].get(name)) for name in names]
            best = f"**{r['best_peer_ratio']:.2f}×**" if r["best_peer"] else "–"
            out.append(f"| {r['model']} | {r['heddle_ms']:.3f} | {' | '.join(cells)} | {best} |")
        ratios = [r["best_peer_ratio"] for r in here if r["best_peer"]]
        if ratios:
            out.append("| geometric mean | " + " | " * len(names) +
                       f" | **{geometric_mean(ratios):.2f}×** |")
        out += [""] + [f"- {name} on {r['model']}: {p['error']}" for r in here
                       for name, p in r["peers"].items() if p["error"]]
    return out


def low_cell(p):
    if p is None or p["error"]:
        return "error" if p else "not measured"
    return f"{p['median_ms']:.3f} ({p['ratio']:.2f}×, {p['difference']:.0e})"


def compile_table(data):
    out = ["\n### Compiling and loading\n",
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
    out = ["\n### What each idea adds\n",
           "`heddle bench MODEL --ablation`: all steps interleaved in one run; median ms and kernels. Plans are\n"
           "chosen by the model's costs, not by these times, and the machine is shared: a later row can be\n"
           "slower than an earlier one.\n",
           "| step | " + " | ".join(a["model"] for a in data["ablation"]) + " |",
           "|---" * (1 + len(data["ablation"])) + "|"]
    for i, step in enumerate(data["ablation"][0]["ablation"]):
        cells = [f"{a['ablation'][i]['median_ms']:.2f} ({a['ablation'][i]['kernels']})"
                 for a in data["ablation"]]
        out.append(f"| {step['step']} | " + " | ".join(cells) + " |")
    return out


PARTS = {"tuned": (parts.measure_tuned, parts.tuned_table),
         "roofline": (parts.measure_roofline, parts.roofline_table),
         "memory": (parts.measure_memory, parts.memory_table)}


def measure_part(name, flags, data):
    """One of those tables, its rows in place of older ones."""
    models = flags.models.split(",")
    if name == "tuned":
        fresh = [row for threads in map(int, flags.threads.split(","))
                 for row in parts.measure_tuned(call, HEDDLE, models, threads, flags.duration, flags.tuned)]
    elif name == "roofline":
        if flags.models == ",".join(MODELS):
            models = parts.ROOFLINE
        fresh = [row for threads in map(int, flags.threads.split(","))
                 for row in parts.measure_roofline(call, HEDDLE, models, threads)]
    else:
        fresh = parts.measure_memory(call, HEDDLE, models, ROOT)
    rows = data.setdefault(name, [])
    for row in fresh:
        same = [i for i, r in enumerate(rows)
                if (r["model"], r.get("threads")) == (row["model"], row.get("threads"))]
        if same:
            rows[same[0]] = row
        else:
            rows.append(row)
    write(data, flags.out)


def section(data):
    """All that one machine was measured to do."""
    lines = [f"\n## {data['machine']}, {data['date']}"]
    lines += model_tables(data) + low_tables(data["low"])
    lines += compile_table(data) if data["rows"] else []
    for name, (_, table) in PARTS.items():
        lines += table(data[name]) if data.get(name) else []
    lines += ablation_tables(data) if data["ablation"] else []
    for title, text in data["micro"].items():
        lines += [f"\n### {title}\n", "```", text.rstrip(), "```"]
    return lines


def write(data, folder):
    """The machine's own file, and the page of all machines."""
    data["date"] = datetime.date.today().isoformat()
    (folder / f"performance-{data['cpu']}.json").write_text(json.dumps(data, indent=1) + "\n")
    write_page(folder)


def write_page(folder):
    lines = ["# Performance\n", "Made by `bench/performance.py` (its help says how to make it again); do not edit. A "
             "ratio is\nthe peer's median over Heddle's, both from the same interleaved run; above 1 Heddle is faster.\n"
             "Heddle's time is of the run that measured the best peer (its interval is there if no other peer was\n"
             "measured later); the number of kernels is the last run's."]
    for path in sorted(folder.glob("performance-*.json"), reverse=True):
        lines += section(json.loads(path.read_text()))
    lines += ["", (folder / "performance-notes.txt").read_text().rstrip()]
    (folder / "performance.md").write_text("\n".join(lines) + "\n")


def of_this_machine(folder):
    """What was measured here before, or nothing."""
    cpu = json.loads(call(HEDDLE, "doctor", "--json"))["cpu"]
    path = folder / f"performance-{cpu['name']}.json"
    if path.exists():
        return json.loads(path.read_text())
    return {"cpu": cpu["name"], "rows": [], "low": [], "ablation": [], "micro": {},
            "machine": f"{cpu['name']}, {8 * cpu['vector_bytes']}-bit vectors{', tile registers (AMX)' * cpu['tiles']}, "
                       f"{cpu['threads']} threads"}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="short runs")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "docs")
    parser.add_argument("--peers", nargs="?", const=PEERS, help="only the models, against these")
    parser.add_argument("--results", nargs="+", type=pathlib.Path,
                        help="only the models of these files of `heddle bench --vs PEERS --json`")
    parser.add_argument("--low", nargs="?", const="bf16,int8", help="only these precisions' tables, against --peers if named")
    parser.add_argument("--tuned", metavar="CACHE", help="only --budget none against what is tuned in CACHE")
    parser.add_argument("--roofline", action="store_true", help="only the roofline")
    parser.add_argument("--memory", action="store_true", help="only peak memory (nothing is timed)")
    parser.add_argument("--kernels", action="store_true", help="only kernels against libraries, and the ablation")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--threads", default="2,1")
    parser.add_argument("--duration", type=float, help="seconds of measuring for each contestant")
    parser.add_argument("--peer-timeout", type=float, default=600, help="seconds for loading")
    parser.add_argument("--page", action="store_true", help="measure nothing, write the page again")
    flags = parser.parse_args()
    flags.duration = flags.duration or (0.5 if flags.quick else 2)
    data = of_this_machine(flags.out)
    if flags.page:
        write_page(flags.out)
    elif any(getattr(flags, name) for name in PARTS):
        for name in PARTS:
            if getattr(flags, name):
                measure_part(name, flags, data)
    elif flags.kernels:
        write(kernels_and_ideas(data, flags.duration), flags.out)
    elif flags.low:
        measure_low(flags, data)
    elif flags.peers or flags.results:
        versus(flags, data)
    else:
        write(everything(data, flags.duration), flags.out)


def results_of(flags):
    """Of `heddle bench --vs`: made now, or before (files)."""
    if flags.results:
        for path in flags.results:
            result = json.loads(path.read_text())
            yield result["model"].split("/")[-1], result["threads"], result
        return
    for threads in map(int, flags.threads.split(",")):
        for model in flags.models.split(","):
            yield model, threads, bench(model, threads, flags.duration, "--vs", flags.peers,
                                        "--peer-timeout", flags.peer_timeout)


def versus(flags, data):
    """Adds the results to the rows of `data`, in place of older rows."""
    for model, threads, result in results_of(flags):
        old = next((r for r in data["rows"] if r["model"] == model), None)
        rest = ({k: old[k] for k in TIMES} if old else dict(zip(TIMES, compile_seconds(model))))
        at = next((i for i, r in enumerate(data["rows"])
                   if (r["model"], r["threads"]) == (model, threads)), None)
        row = row_of(result, rest, data["rows"][at]["peers"] if at is not None else None)
        if at is None:
            data["rows"].append(row)
        else:
            data["rows"][at] = row
        print(f"{model} {threads}: {row['best_peer_ratio']:.2f} ({row['best_peer']})", flush=True)
        write(data, flags.out)  # what is measured is kept, whatever happens to the rest


def everything(data, duration):
    data |= {"rows": []}
    seconds = {model: compile_seconds(model) for model in MODELS}
    for threads in (2, 1):
        for model in MODELS:
            result = bench(model, threads, duration, "--vs", "ort")
            data["rows"].append(row_of(result, dict(zip(TIMES, seconds[model]))))
            print(f"{model} {threads}: {data['rows'][-1]['best_peer_ratio']:.2f}", flush=True)
    return kernels_and_ideas(data, duration)


def kernels_and_ideas(data, duration):
    """Kernels against libraries, and what each idea adds."""
    data |= {"ablation": [], "micro": {}}
    for model in ABLATED:
        result = bench(model, 2, duration / 2, "--ablation")
        data["ablation"].append({"model": model, "ablation": result["ablation"]})
    for title, program in MICRO:
        data["micro"][title] = call(ROOT / "build/bin" / program, 2)
    return data


if __name__ == "__main__":
    main()
