#!/usr/bin/env python3
"""What a monolith gains over kernels one after another (docs/monolith.md), on networks of many
small kernels. Each network is compiled with --mode auto, which times the layouts and `kernels` in turns in one
process; the table is of what it measured.

  bench/modes.py [--threads 2] [--page] [model…]     models: folders of build/zoo
"""
import argparse
import datetime
import json
import math
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent
MODELS = ["minilm-l6", "mobilenetv2", "yolox-nano", "gpt2-decode", "lstm-tagger"]
PAGE = ROOT / "docs" / "monolith.md"

NOTES = """
Wanted: 1.15×. What there is to gain: threads wait for 1 to 6 % of a run of the first four networks, and their kernels
are bound by arithmetic or, in a decode step, by memory; a tagger's recurrences run side by side, each with its weights
in its own core's cache, at the bandwidth of that cache.

Tried (two threads, medians of 0.3 to 0.6 s in turns):

- Depth first, with 1, 2, 4, 8 and 16 items of each worker, so that tiles are consumed while they are in the second
  level: MobileNetV2 within 2 % of plain counters either way, YOLOX-nano 0 to 3 % slower.
- No stage split (`whole=1000,depth`): the tagger 139 us, against 168 with stages split and 228 as kernels. It needs
  memory that is used again only where data orders the kernels anyway: without that the directions waited for
  each other's buffers.
- Each stage as is best for it alone (`monolith:tuned`: counters or a barrier before it, 1 or 4 items, one worker). With
  what stages on one worker add taken from runs in which they lay side by side, it was as fast as kernels on MobileNetV2
  and the tagger (229 us) and 11 % slower on YOLOX-nano; so a stage on one worker counts with all its time.
- Not tried: asking for the next stage's weights while waiting. All waits together would bring a few megabytes.
"""


def measured_once(model, threads):
    command = [ROOT / "build/bin/heddle", "explain", ROOT / "build/zoo" / model, "--json",
               "--threads", str(threads), "--mode", "auto", "--cache", "none"]
    report = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    times = {m["mode"]: m["us"] for m in report["mode"]["measured"]}
    return times, len(report["kernels"]), report["machine"]["cpu"]


def measured(model, threads, repeats):
    """The least median of each mode: compiling leaves few turns to long networks."""
    runs = [measured_once(model, threads) for _ in range(repeats)]
    return {m: min(r[0][m] for r in runs) for m in runs[0][0]}, runs[0][1], runs[0][2]


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5, help="compilations of each network")
    parser.add_argument("--page", action="store_true", help=f"write {PAGE.relative_to(ROOT)}")
    parser.add_argument("models", nargs="*", default=MODELS)
    args = parser.parse_args()
    rows, ratios, cpu = [], [], ""
    for model in args.models:
        times, kernels, cpu = measured(model, args.threads, args.repeats)
        apart = times.pop("kernels")
        best = min(times, key=times.get)
        ratios.append(apart / times[best])
        rows.append(f"| {model} | {kernels} | {apart:.1f} | {times.get('monolith:barriers', math.nan):.1f} "
                    f"| {times[best]:.1f} | {best} | **{ratios[-1]:.2f}×** |")
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    text = f"""# Monoliths on the CPU

Made by `bench/modes.py`; do not edit. Machine: {cpu}, {args.threads} threads. Date: {datetime.date.today()}.

Medians of a run in microseconds, the least of {args.repeats} compilations: kernels one after another, each a parallel region of its own; one region in which
threads meet after every kernel; and the fastest layout of a monolith (`--mode`), all in turns in one process.

| network | kernels | one after another | barriers | monolith | layout | gain |
|---|---|---|---|---|---|---|
""" + "\n".join(rows) + f"\n| geometric mean | | | | | | **{mean:.2f}×** |\n" + NOTES
    print(text)
    if args.page:
        PAGE.write_text(text)


if __name__ == "__main__":
    main()
