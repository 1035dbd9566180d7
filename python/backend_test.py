"""onnx's backend tests through onnx's own runner, counted.

    HEDDLE=build/bin/heddle PYTHONPATH=python build/venv/bin/python python/backend_test.py \
        [--pattern REGEX] [--part K N]

`--part K N` runs every N-th test from the K-th. onnx's runner counts what a backend refuses as
passed; here it is told apart. Its networks that have to be downloaded are left out. The exit code
is 1 if a test fails.
"""

import argparse
import re
import sys
import unittest

import onnx.backend.test

import heddle.backend

DOWNLOADED = "OnnxBackendRealModelTest"


def tests(pattern, part, parts):
    runner = onnx.backend.test.BackendTest(heddle.backend, __name__)
    found = []
    for kind, case in sorted(runner.test_cases.items()):
        if kind != DOWNLOADED:
            found += [case(name) for name in unittest.defaultTestLoader.getTestCaseNames(case)
                      if name.endswith("_cpu") and re.search(pattern, name)]
    return found[part - 1::parts]


def outcome(test):
    """passed, refused or failed, and why."""
    heddle.backend.refusals.clear()
    result = unittest.TestResult()
    test.run(result)
    if heddle.backend.refusals:
        return "refused", heddle.backend.refusals[0]
    if result.skipped:
        return "refused", result.skipped[0][1]
    if result.wasSuccessful():
        return "passed", ""
    return "failed", (result.errors + result.failures)[0][1].strip().splitlines()[-1]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--pattern", default="", help="a regular expression for the names")
    parser.add_argument("--part", type=int, nargs=2, default=[1, 1], metavar=("K", "N"))
    arguments = parser.parse_args()
    counts = {"passed": 0, "refused": 0, "failed": 0}
    for test in tests(arguments.pattern, *arguments.part):
        status, reason = outcome(test)
        counts[status] += 1
        if status != "passed":
            print(f"{status} {test._testMethodName}: {reason[:200]}", flush=True)
    total = max(1, sum(counts.values()))
    print(", ".join(f"{count} {status}" for status, count in counts.items()),
          f"of {total} ({100 * counts['passed'] / total:.1f} % passed)")
    sys.exit(1 if counts["failed"] else 0)


if __name__ == "__main__":
    main()
