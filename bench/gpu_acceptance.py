"""The work of scripts/gpu_acceptance.sh: tests, conformance, targets, sanitizer and benchmarks on a GPU, as
JSON and Markdown.

Steps run in the order of their worth, the first until what the others are sure of is left (SHARES); what was left
out is said in the result. A step that fails does not stop the others; the exit code is 1 if one did, and as well where
a training step's losses are not PyTorch's. Targets that are missed or unproven are listed and change no exit code.
"""

import argparse
import datetime
import json
import math
import os
import pathlib
import platform
import re
import shutil
import sqlite3
import subprocess
import sys
import time

import gpu_monolith
import gpu_targets
import gpu_training

ROOT = pathlib.Path(__file__).resolve().parent.parent
HEDDLE = ROOT / "build/bin/heddle"
ZOO = ["mlp", "minilm-l6", "resnet50", "bert-base", "mobilenetv2", "vit-b16", "segformer-b0", "candy"]
CASES = [("bf16", 1), ("f32", 1), ("tf32", 1), ("bf16", 16), ("f32", 16)]
TEMPLATE_ROWS = int(os.environ.get("HEDDLE_TEMPLATE_ROWS", 2048))
SANITIZERS = ["memcheck", "racecheck", "synccheck", "initcheck"]
# In this order. Of all the time, what steps before these leave to them.
STEPS = ["tests", "conformance", "zoo", "targets", "training", "monoliths", "templates", "sanitizer", "benchmarks"]
SHARES = {"targets": 0.1, "training": 0.35, "monoliths": 0.1, "benchmarks": 0.1}


class Clock:
    def __init__(self, end):
        self.end = end

    def left(self):
        return self.end - time.monotonic()


def clocks(seconds, steps):
    """Of each step: it ends where what is kept for those behind it begins."""
    end = time.monotonic() + seconds
    return {step: Clock(end - seconds * sum(SHARES.get(s, 0) for s in steps[i + 1:])) for i, step in enumerate(steps)}


def run(command, seconds, **more):
    """(exit code or None for a time-out, output, seconds)."""
    start = time.monotonic()
    try:
        done = subprocess.run([str(c) for c in command], capture_output=True, text=True, cwd=ROOT,
                              timeout=max(1, seconds), **more)
        code, out, error = done.returncode, done.stdout, done.stderr
    except subprocess.TimeoutExpired:
        code, out, error = None, "", f"longer than {seconds:.0f} s"
    except OSError as problem:
        code, out, error = 127, "", str(problem)
    return code, out, error, time.monotonic() - start


def machine():
    """What nvidia-smi and the command itself say of the device."""
    fields = ["name", "driver_version", "memory.total", "clocks.sm", "clocks.mem", "clocks.max.sm", "power.limit"]
    code, out, error, _ = run(["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader"], 20)
    found = dict(zip(fields, out.splitlines()[0].split(", "))) if code == 0 and out else {"nvidia-smi": error.strip()}
    code, out, _, _ = run([HEDDLE, "doctor", "--json"], 30)
    found["doctor"] = json.loads(out) if code == 0 else None
    found["host"] = platform.platform()
    return found


def last_line(text):
    lines = [line for line in text.strip().splitlines() if line]
    return lines[-1] if lines else ""


def device_tests(result, clock):
    environment = {**os.environ, "HEDDLE": str(HEDDLE)}
    code, out, error, seconds = run([sys.executable, "tests/cuda/end_to_end_test.py"], min(240, clock.left()),
                                    env=environment)
    result["tests"] = {"ok": code == 0, "seconds": seconds, "summary": last_line(error),
                       "log": "" if code == 0 else error[-4000:]}


def conformance(result, clock):
    """The prelude's helpers and hand-written kernels on the device, against what the emulator is held to."""
    code, out, error, seconds = run([ROOT / "build/tests/heddle_cuda_text_test"], min(120, clock.left()),
                                    env={**os.environ, "HEDDLE_TEXT_DEVICE": "cuda"})
    failed = re.findall(r"^\[  FAILED  \] (\S+)", out, re.M)
    counts = re.search(r"^\[  PASSED  \] (\d+ tests?)", out, re.M)
    result["conformance"] = {"ok": code == 0, "seconds": seconds, "failed": sorted(set(failed)),
                             "summary": f"{counts.group(1)} passed" if counts else last_line(error or out),
                             "log": "" if code == 0 else out[-4000:]}


def sanitizer(result, clock):
    """compute-sanitizer over a small transformer, where the tool works."""
    result["sanitizer"] = {}
    tool = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    model = ROOT / "build/acceptance/transformer.onnx"
    code, _, error, _ = run([sys.executable, "-c", "import sys; sys.path.insert(0, 'tests/cuda'); import networks; "
                             f"networks.transformer({str(model)!r})"], 60)
    for name in SANITIZERS:
        if code != 0 or not pathlib.Path(tool).exists():
            result["sanitizer"][name] = {"ran": False, "reason": error.strip() or f"{tool} is not here"}
            continue
        tool_code, out, tool_error, seconds = run(
            [tool, "--tool", name, "--error-exitcode", "9", HEDDLE, "run", model, "--device", "cuda"],
            min(60, clock.left()))
        summary = next((l for l in reversed(out.splitlines()) if "SUMMARY" in l), last_line(out + tool_error))
        ran = tool_code is not None and "ERROR SUMMARY" in summary or "RACECHECK SUMMARY" in summary
        result["sanitizer"][name] = {"ran": ran, "ok": tool_code == 0, "seconds": seconds, "reason": summary}


def make_zoo(result, models, clock):
    code, _, error, _ = run([sys.executable, "zoo/materialise.py", "build/zoo", *models], clock.left())
    if code != 0:
        result["zoo_errors"].append(last_line(error))


def correctness(result, models, clock):
    result["zoo"] = {}
    for model in models:
        if clock.left() < 10:
            result["zoo"][model] = {"ok": None, "detail": "no time left"}
            continue
        code, out, error, seconds = run([HEDDLE, "run", f"build/zoo/{model}", "--device", "cuda",
                                         "--of-scale", "1e-3"], min(120, clock.left()))
        result["zoo"][model] = {"ok": code == 0, "seconds": seconds, "detail": last_line(error or out)}


def bench(model, precision, batch, arguments, clock):
    original = ROOT / f"build/zoo/{model}/model.onnx"
    folder = ROOT / "build/acceptance"
    theirs = ours = original
    for name, wanted in (("f32", ["f32"]), ("bf16", ["bf16"])):
        if name == "bf16" and precision != "bf16" or (name == "f32" and batch == 1):
            continue
        made = folder / f"{model}-{name}-{batch}.onnx"
        code, _, error, _ = run([sys.executable, "bench/gpu_models.py", original, made, "--precision", *wanted,
                                 "--batch", batch], min(120, clock.left()))
        if code != 0:
            return {"error": last_line(error)}
        ours = made
        theirs = made if name == "f32" else theirs
    command = [HEDDLE, "bench", ours, "--device", "cuda", "--json", "--duration", arguments.duration, "--rounds", 6,
               "--peers-model", theirs, "--budget", arguments.budget, "--venv", pathlib.Path(sys.executable).parent.parent]
    command += ["--precision", "tf32"] if precision == "tf32" else ["--peers-precision", precision]
    peers = [p for p in arguments.peers if precision == "f32" or p != "jax"]
    if peers:
        command += ["--vs", ",".join(peers), "--peer-timeout", 120]
    code, out, error, _ = run(command, min(300, clock.left()))
    return json.loads(out) if code == 0 else {"error": gpu_targets.reason(error)}


def templates(result, clock):
    """Products by CUTLASS: two with epilogues are compiled by nvcc, held to the float64 reference, and, larger, timed.

    Kernels and schedules are decided by a file of measurements, in which these are replaced."""
    rows = (result["machine"]["doctor"] or {}).get("optional", [])
    tools = next((r for r in rows if r["name"] == "CUTLASS"), {"found": False, "detail": "heddle doctor failed"})
    if not tools["found"] or clock.left() < 120:
        result["templates"] = {"ran": False, "reason": tools["detail"] if not tools["found"] else "no time left"}
        return
    start = time.monotonic()
    out = result["templates"] = {"ran": True, "ok": True, "reason": "", "ms": {}}
    for verb, extent in (("verify", 256), ("bench", TEMPLATE_ROWS)):
        for tuning in ("own", "cutlass=1", "cutlass=2"):
            done, named = template_run(verb, extent, tuning, clock)
            if done[0] != 0 or not named:
                out["ok"], why = False, last_line(done[2]) if done[0] != 0 else "no unit was made"
                out["reason"] += f"{verb} {tuning}: {why}. "
            elif verb == "bench":
                out["ms"][tuning] = json.loads(done[1])["heddle"]["median_ms"]
    out["seconds"] = time.monotonic() - start


def template_run(verb, extent, tuning, clock):
    """The result of a verb on two products of this extent, and whether they were made by the tuning."""
    folder = ROOT / "build/acceptance"
    model, measured = folder / f"feed_forward-{extent}.onnx", folder / f"templates-{extent}.db"
    common = [model, "--device", "cuda", "--precision", "bf16", "--locked", measured]
    if tuning == "own":
        measured.unlink(missing_ok=True)
        run([sys.executable, "-c", "import sys; sys.path.insert(0, 'tests/cuda'); import networks; "
             f"networks.feed_forward({str(model)!r}, {extent}, {extent})"], 60)
        made = run([HEDDLE, "compile", *common, "--budget", "5", "-o", folder / "own.heddle"], min(60, clock.left()))
        if made[0] != 0:
            return made, False
    else:
        with sqlite3.connect(measured) as db:
            db.execute("update measurement set tuning = ?, us = 0.01 where label like '%contract%map%'", [tuning])
        db.close()
    more = ["--json", "--duration", 1] if verb == "bench" else []
    done = run([HEDDLE, verb, *common, *more], min(120, clock.left()))
    shown = run([HEDDLE, "explain", *common, "--json"], min(60, clock.left()))
    return done, tuning == "own" or '"cutlass ' in shown[1]


def benchmarks(result, models, arguments, clock):
    result["rows"] = []
    for precision, batch in CASES:
        for model in models:
            row = {"model": model, "precision": precision, "batch": batch}
            if clock.left() < 15:
                row["error"] = "no time left"
            else:
                row |= {k: v for k, v in bench(model, precision, batch, arguments, clock).items() if k not in row}
            row["best_peer_ratio"] = gpu_targets.best_ratio(row)
            result["rows"].append(row)
            print(f"{model} {precision} batch {batch}: {row.get('error') or describe(row)}", flush=True)


def describe(row):
    text = f"{row['heddle']['median_ms']:.3f} ms"
    for name, peer in row.get("peers", {}).items():
        text += f", {name} " + (peer["error"] if peer.get("error") else f"{peer['ratio']:.2f}x")
    return text


def cell(peer):
    if not peer:
        return "–"
    return peer["error"].replace("|", "/")[:60] if peer.get("error") else f"{peer['median_ms']:.3f} ({peer['ratio']:.2f}×)"


def mean_over_peers(result):
    """Geometric mean over the zoo at batch 1 of the best peer's time over ours, of how many rows it is, and whether of
    all."""
    wanted = [r["best_peer_ratio"] for r in result["rows"] if r["batch"] == 1]
    ratios = [r for r in wanted if r]
    return (math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else None), len(ratios), ratios == wanted


def state_of(part):
    return {None: "not run", True: "passed", False: "FAILED"}[part["ok"]]


def markdown(result, peers):
    m = result["machine"]
    lines = [f"# {result['gpu']}, {result['date']}", "",
             f"Driver {m.get('driver_version', '?')}, SM clock {m.get('clocks.sm', '?')} now and at most "
             f"{m.get('clocks.max.sm', '?')}, memory clock {m.get('clocks.mem', '?')}; Heddle {result['revision']}. "
             "Inputs and outputs lie on the device; medians of interleaved runs in ms; × is the peer's median over "
             "Heddle's.", "",
             f"Tests on the device: {state_of(result['tests'])} ({result['tests']['summary']}).",
             f"Helpers of the prelude on the device: {state_of(result['conformance'])} "
             f"({', '.join(result['conformance']['failed']) or result['conformance']['summary']}).", ""]
    lines += [f"- compute-sanitizer {name}: " + (("no errors" if s.get("ok") else s["reason"]) if s["ran"] else
                                                 f"did not run ({s['reason']})")
              for name, s in result["sanitizer"].items()]
    t = result["templates"]
    lines.append("- products by CUTLASS: " + (
        ("agree with the reference; ms: " + ", ".join(f"{k} {v:.3f}" for k, v in t["ms"].items()))
        if t.get("ok") else ("FAILED: " if t["ran"] else "did not run: ") + t["reason"]))
    lines += ["", "| model | against ONNX Runtime's outputs |", "|---|---|"]
    lines += [f"| {n} | {'agrees' if z['ok'] else z['detail']} |" for n, z in result["zoo"].items()]
    lines += ["", "| model | precision | batch | Heddle | " + " | ".join(peers) + " |", "|---" * (4 + len(peers)) + "|"]
    for row in result["rows"]:
        ours = row.get("error") or f"{row['heddle']['median_ms']:.3f}"
        lines.append(f"| {row['model']} | {row['precision']} | {row['batch']} | {ours} | " +
                     " | ".join(cell(row.get("peers", {}).get(p)) for p in peers) + " |")
    mean, rows, whole = mean_over_peers(result)
    if rows:
        lines += ["", f"Geometric mean over the fastest peer at batch 1: {mean:.2f}× ({rows} rows"
                  f"{'' if whole else ', others are not measured'})."]
    lines += gpu_training.markdown(result["training"], peers)
    lines += gpu_monolith.markdown(result["monoliths"])
    lines += gpu_targets.markdown(result["measured"], result["targets"])
    return "\n".join(lines) + "\n"


def left_out(arguments):
    """The results of steps that do not run."""
    note = "left out"
    return {"tests": {"ok": None, "summary": note}, "conformance": {"ok": None, "failed": [], "summary": note},
            "measured": {"copy_gbs": None, "note": "kernels and products: left out", "scale": arguments.scale,
                         "memory_bound": [], "products": []},
            "zoo": {}, "zoo_errors": [], "training": [], "monoliths": [], "templates": {"ran": False, "reason": note}, "sanitizer": {},
            "rows": []}


def run_step(step, result, models, arguments, clock):
    if step == "tests":
        device_tests(result, clock)
        print("tests:", result["tests"]["summary"], flush=True)
    elif step == "conformance":
        conformance(result, clock)
        print("conformance:", result["conformance"]["summary"], flush=True)
    elif step == "targets":
        result["measured"] = gpu_targets.measure(run, HEDDLE, ROOT / "build/acceptance", clock, arguments)
    elif step == "zoo":
        make_zoo(result, models, clock)
        correctness(result, models, clock)
    elif step == "training":
        result["training"] = gpu_training.measure(run, HEDDLE, ROOT, clock, arguments)
    elif step == "monoliths":
        made = [n for n in gpu_monolith.NETWORKS if n not in [*gpu_monolith.LARGE, "llama-like"]]
        make_zoo(result, made, clock)
        result["monoliths"] = gpu_monolith.measure(run, HEDDLE, clock, arguments)
    elif step == "templates":
        templates(result, clock)
        print("CUTLASS:", result["templates"], flush=True)
    elif step == "sanitizer":
        sanitizer(result, clock)
    elif step == "benchmarks":
        make_zoo(result, models, clock)
        benchmarks(result, models, arguments, clock)


def exit_code(result):
    """1 where a step failed; one that did not run has not."""
    parts = [result[name].get("ok") for name in ("tests", "conformance", "templates")]
    failed = any(ok is False for ok in parts) or not all(z["ok"] for z in result["zoo"].values())
    return 1 if failed or gpu_training.disagreeing(result["training"]) else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=9)
    parser.add_argument("--only", default=",".join(STEPS), help="steps, with commas: " + ", ".join(STEPS))
    parser.add_argument("--peers", default="torch,torch-compile,jax", help="with commas, or none")
    parser.add_argument("--models", default=",".join(ZOO))
    parser.add_argument("--duration", type=float, default=1, help="seconds of measuring per contestant")
    parser.add_argument("--budget", default="none", help="heddle's --budget for every model")
    parser.add_argument("--scale", type=int, default=1, help="divides the sizes of kernels and products: to try this")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "docs/results")
    arguments = parser.parse_args()
    arguments.peers = [] if arguments.peers == "none" else arguments.peers.split(",")
    models = arguments.models.split(",")
    only = arguments.only.split(",")
    if unknown := sorted(set(only) - set(STEPS)):
        parser.error(f"--only: found {', '.join(unknown)}, want of {', '.join(STEPS)}")
    steps = clocks(60 * arguments.minutes, [s for s in STEPS if s in only])
    (ROOT / "build/acceptance").mkdir(parents=True, exist_ok=True)

    revision = ROOT / "REVISION"
    result = {"date": datetime.date.today().isoformat(), "machine": machine(), "minutes": arguments.minutes,
              "revision": revision.read_text().strip() if revision.exists() else
              run(["git", "rev-parse", "HEAD"], 10)[1].strip()}
    driver = next((r for r in (result["machine"]["doctor"] or {}).get("optional", []) if r["name"] == "CUDA driver"), {})
    if not driver.get("found"):
        sys.exit(f"gpu_acceptance: no GPU: {driver.get('detail', 'heddle doctor failed')}")
    result["gpu"] = result["machine"].get("name") or driver["detail"].split(",")[0]
    result |= left_out(arguments)
    for step, clock in steps.items():
        run_step(step, result, models, arguments, clock)
    mean, _, whole = mean_over_peers(result)
    result["targets"] = gpu_targets.verdicts(result["measured"], mean if whole else None)
    result["targets"] += gpu_monolith.verdicts(result["monoliths"], result["measured"]["copy_gbs"], arguments.scale == 1)
    result["targets"] += gpu_training.verdicts(result["training"])
    for target in result["targets"]:
        print(f"{target['target']}: {target['state']} ({gpu_targets.number(target['found'])}, wanted {target['wanted']})")

    name = re.sub(r"[^a-z0-9]+", "-", result["gpu"].lower()).strip("-") + "-" + result["date"]
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")
    (arguments.out / f"{name}.md").write_text(markdown(result, arguments.peers))
    print(arguments.out / f"{name}.md")
    sys.exit(exit_code(result))


if __name__ == "__main__":
    main()
