#!/usr/bin/env python3
"""An artefact of several sizes against static builds: `bench/sizes.py MODEL.onnx ARTEFACT`.

For each program of the artefact, at the largest size that it runs: the artefact and a static build
of the program's own size (which is larger where the program pads) take turns, a process each; the
ratio is that of their medians in each turn, and the median of these with a 95 % interval.
"""
import argparse
import json
import os
import random
import re
import statistics
import subprocess

HEDDLE = os.environ.get("HEDDLE", "build/bin/heddle")


def heddle(*arguments):
    done = subprocess.run([HEDDLE, *map(str, arguments)], capture_output=True, text=True,
                          check=False)
    if done.returncode != 0:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout)


def milliseconds(arguments, options):
    report = heddle("bench", *arguments, "--json", "--rounds", 1, "--duration", options.seconds,
                    "--warmup", options.warmup, *(["--threads", options.threads]
                                                  if options.threads else []))
    return report["heddle"]["median_ms"]


def interval(ratios):
    """Of the median, by resampling the turns."""
    draw = random.Random(0)
    medians = sorted(statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(2000))
    return medians[50], medians[1949]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("artefact")
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=0.5, help="of measuring in each turn")
    parser.add_argument("--warmup", type=float, default=100, help="ms")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--programs", type=int, nargs="*", help="only these, by number")
    options = parser.parse_args()
    report = heddle("explain", options.artefact, "--json")
    for number, ports in enumerate(report["programs"]):
        if options.programs and number not in options.programs:
            continue
        rows = [row["sizes"] for row in report["dispatch"] if row["program"] == number]
        sizes = max(rows, key=lambda row: tuple(row.values()))
        shapes, ours = [], [options.artefact]
        for port in ports:
            extents = re.search(r"\[(.*)\]", port["type"]).group(1).replace(",", "x")
            shapes += ["--shape", f"{port['name']}={extents}"]
        for name, size in sizes.items():
            ours += ["--size", f"{name}={size}"]
        static = [options.model, *shapes]
        milliseconds(static, argparse.Namespace(seconds=0.01, warmup=0, threads=options.threads))
        turns = [(milliseconds(ours, options), milliseconds(static, options))
                 for _ in range(options.turns)]
        ratios = [mine / theirs for mine, theirs in turns]
        low, high = interval(ratios)
        print(f"program {number}, {len(rows)} sizes, run at "
              f"{', '.join(f'{k}={v}' for k, v in sizes.items())}: "
              f"{statistics.median(mine for mine, _ in turns):.2f} ms, static "
              f"{' '.join(shapes[1::2])}: {statistics.median(theirs for _, theirs in turns):.2f} "
              f"ms, ratio {statistics.median(ratios):.3f} ({low:.3f} to {high:.3f})", flush=True)


if __name__ == "__main__":
    main()
