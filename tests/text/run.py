#!/usr/bin/env python3
"""Runs the golden texts: run.py HEDDLE_OPT [--update] [FILE…].

A file is a row of cases:

    // RUN: --passes=canonicalize
    input text, comments included
    // ----
    expected output

In files named fail_*, what is expected is the error message, and the tool must exit with 1 or 2.
Output of the others must also read back as itself. --update writes what the tool prints.
"""

import argparse
import concurrent.futures
import difflib
import pathlib
import re
import shlex
import subprocess
import sys

RUN, CUT = "// RUN:", "// ----"


def read_cases(text):
    """What stands before the first case, and [options, input, expected] of each."""
    head, cases, part = "", [], None
    for line in text.splitlines(keepends=True):
        if line.startswith(RUN):
            cases.append([line[len(RUN) :].strip(), "", ""])
            part = 1
        elif part == 1 and line.startswith(CUT):
            part = 2
        elif part is None:
            head += line
        else:
            cases[-1][part] += line
    return head, cases


def call(tool, options, text):
    try:
        return subprocess.run(
            [tool, *shlex.split(options)], input=text.encode(), capture_output=True, timeout=60
        )
    except subprocess.TimeoutExpired:
        return None


def run_case(tool, wants_error, options, text):
    """What the tool printed, and a complaint or None."""
    done = call(tool, options, text)
    if done is None:
        return "", "ran for more than 60 s"
    out, err = done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
    if wants_error:
        if done.returncode not in (1, 2) or "internal error" in err:
            return err, f"exit code {done.returncode}, want 1 or 2 and a message\n{err}"
        return err, None
    if done.returncode != 0:
        return out, f"exit code {done.returncode}\n{err}"
    # Constants named by their hash only, and lists of passes, cannot be read back.
    if not re.search(r"constant @|^passes on", out, re.M):
        plain = [o for o in shlex.split(options) if not re.match("--(passes|example)", o)]
        again = call(tool, shlex.join(plain), out)
        if again is None or again.stdout.decode(errors="replace") != out:
            return out, "the output does not read back as itself"
    return out, None


def run_file(tool, path, update):
    wants_error = path.name.startswith("fail_")
    text = path.read_text()
    head, cases = read_cases(text)
    problems = [] if cases else [f"{path.name}: no line starts with '{RUN}'"]
    new = head
    for number, (options, body, expected) in enumerate(cases, 1):
        found, complaint = run_case(tool, wants_error, options, body)
        # An empty line before the next case belongs to the layout.
        tail = "\n" if number < len(cases) else ""
        result = expected.rstrip("\n") + "\n" if complaint else found
        new += f"{RUN} {options}".rstrip() + f"\n{body}{CUT}\n{result}{tail}"
        title = f"{path.name} case {number} ({options})"
        if complaint:
            problems.append(f"{title}: {complaint}")
        elif not update and found.rstrip("\n") != expected.rstrip("\n"):
            diff = difflib.unified_diff(
                expected.splitlines(), found.splitlines(), "expected", "found", lineterm=""
            )
            problems.append(f"{title}:\n" + "\n".join(diff))
    if update and new != text:
        path.write_text(new)
        print(f"updated {path.name}")
    return len(cases), problems


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("tool", help="path of heddle-opt")
    parser.add_argument("files", nargs="*", type=pathlib.Path)
    parser.add_argument("--update", action="store_true", help="write what the tool prints")
    args = parser.parse_args()
    files = args.files or sorted(pathlib.Path(__file__).parent.glob("*.hed"))
    with concurrent.futures.ThreadPoolExecutor(max_workers=2) as pool:
        results = list(pool.map(lambda f: run_file(args.tool, f, args.update), files))
    problems = [p for _, list_ in results for p in list_]
    for problem in problems:
        print(f"FAIL {problem}", file=sys.stderr)
    cases = sum(count for count, _ in results)
    print(f"{cases} cases in {len(files)} files, {len(problems)} problems")
    return 1 if problems or cases == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
