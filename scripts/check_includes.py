#!/usr/bin/env python3
"""Checks the direction of every #include under src/ against the table of floors (docs/architecture.md):
a floor includes only floors below it. Prints each offence; exit code 1 if there is one."""
import pathlib
import re
import sys

# floor -> floors it may include besides itself (transitively closed below).
DIRECT = {
    "support": [],
    "ir": ["support"],
    "prim": ["ir"],
    "ops": ["prim"],
    "grad": ["prim"],
    "onnx": ["ops", "grad"],
    "ilp": ["support"],
    "kernel": ["ir"],
    "lower": ["prim", "kernel"],
    "codegen": ["kernel"],
    "emulation": ["codegen"],
    "runtime": ["support"],
    "plan": ["lower", "ilp", "codegen", "runtime"],
    "driver": ["plan", "onnx", "grad", "ops", "lower", "codegen", "runtime", "ilp"],
}


def closure(floor):
    seen = {floor}
    todo = [floor]
    while todo:
        for below in DIRECT[todo.pop()]:
            if below not in seen:
                seen.add(below)
                todo.append(below)
    return seen


def offences(root):
    allowed = {floor: closure(floor) for floor in DIRECT}
    for path in sorted((root / "src").rglob("*")):
        if path.suffix not in (".h", ".cpp"):
            continue
        floor = path.relative_to(root / "src").parts[0]
        if floor not in allowed:
            yield f"{path}: folder '{floor}' is not in the table of floors"
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            match = re.match(r'\s*#include "([a-z_]+)/', line)
            if match and match.group(1) in DIRECT and match.group(1) not in allowed[floor]:
                yield f"{path}:{number}: {floor}/ may not include {match.group(1)}/"


if __name__ == "__main__":
    found = list(offences(pathlib.Path(__file__).resolve().parent.parent))
    print("\n".join(found) if found else "include directions: fine")
    sys.exit(bool(found))
