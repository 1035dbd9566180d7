"""onnx's backend tests through onnx's own runner, counted.

    HEDDLE=build/bin/heddle PYTHONPATH=python build/venv/bin/python python/backend_test.py \
        [--pattern REGEX] [--part K N] [--jobs N] [--json FILE] [--join FILE...]

`--part K N` runs every N-th test from the K-th. onnx's runner counts what a backend refuses as
passed; here it is told apart. What draws its outputs (Bernoulli) cannot be compared and counts by
itself: no two implementations agree, and scripts/conformance.sh holds those to their distributions.
The exit code is 1 if a test fails that is not in KNOWN, if one in KNOWN passes, or if one is
refused.
"""

import argparse
import json
import multiprocessing
import os
import pathlib
import re
import sys
import tempfile
import unittest

import onnx
import onnx.backend.test

import heddle.backend

DRAWN = re.compile("^test_(bernoulli|training_dropout)(?!.*(zero_ratio|mask_only))")
KNOWN = {
    "test_dft_inverse": "a zero; the test's data hold rounding of f32, more than the tolerance",
    "test_dft_inverse_opset19": "the same",
    "test_loop16_seq_none": "the runner takes the length of a number in a sequence, which fails "
                            "whatever a backend returns",
}

cases = []  # of this process and, after a fork, of the workers


def tests(pattern, part, parts):
    runner = onnx.backend.test.BackendTest(heddle.backend, __name__)
    found = []
    for _, case in sorted(runner.test_cases.items()):
        found += [case(name) for name in unittest.defaultTestLoader.getTestCaseNames(case)
                  if name.endswith("_cpu") and re.search(pattern, name)]
    return found[part - 1::parts]


def outcome(number):
    """A test's name; passed, drawn, refused or failed; and why."""
    test = cases[number]
    name = test._testMethodName.removesuffix("_cpu")
    heddle.backend.refusals.clear()
    result = unittest.TestResult()
    test.run(result)
    if heddle.backend.refusals:
        return name, "refused", heddle.backend.refusals[0]
    if result.skipped:
        return name, "refused", result.skipped[0][1]
    if result.wasSuccessful():
        return name, "passed", ""
    reason = (result.errors + result.failures)[0][1].strip().splitlines()[-1].strip()
    return name, "drawn" if DRAWN.match(name) else "failed", reason


def run_all(jobs):
    """{"onnx", "counts", "rest": what did not pass}, and whether all went as it should."""
    counts = {"passed": 0, "drawn": 0, "refused": 0, "failed": 0}
    rest, good = [], bool(cases)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["ONNX_MODELS"] = folder  # where onnx's runner writes the light networks' inputs
        with multiprocessing.get_context("fork").Pool(jobs) as pool:
            for name, status, reason in pool.imap(outcome, range(len(cases)), chunksize=4):
                counts[status] += 1
                known = name in KNOWN
                if status == "refused" or (status == "failed") != known:
                    good = False
                if status != "passed":
                    rest.append({"name": name, "status": status, "reason": KNOWN.get(name, reason)})
                    print(f"{status} {name}: {reason[:200]}", flush=True)
                elif known:
                    print(f"passed {name}, which KNOWN says fails", flush=True)
    return {"onnx": onnx.__version__, "counts": counts, "rest": rest}, good


def joined(files):
    """One report of those of parts."""
    reports = [json.loads(pathlib.Path(file).read_text(encoding="utf-8")) for file in files]
    counts = {status: sum(r["counts"][status] for r in reports) for status in reports[0]["counts"]}
    rest = sorted((row for r in reports for row in r["rest"]), key=lambda row: row["name"])
    for row in rest:
        row["reason"] = KNOWN.get(row["name"], row["reason"])
    return {"onnx": reports[0]["onnx"], "counts": counts, "rest": rest}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--pattern", default="", help="a regular expression for the names")
    parser.add_argument("--part", type=int, nargs=2, default=[1, 1], metavar=("K", "N"))
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--json", type=pathlib.Path, help="write counts and what did not pass")
    parser.add_argument("--join", nargs="+", help="run nothing, add up the reports of parts")
    arguments = parser.parse_args()
    if arguments.join:
        report, good = joined(arguments.join), True
    else:
        cases.extend(tests(arguments.pattern, *arguments.part))
        report, good = run_all(arguments.jobs)
    counts = report["counts"]
    total = sum(counts.values())
    print(", ".join(f"{count} {status}" for status, count in counts.items()),
          f"of {total} ({100 * counts['passed'] / max(1, total):.1f} % passed)")
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
