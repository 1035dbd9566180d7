"""Makes stand-ins for shared libraries that others in a folder need but never call.

    python scripts/stub_libraries.py FOLDER PATTERN

For each library whose name matches PATTERN and that a library in FOLDER needs: one with the same name
and versions that defines what FOLDER's libraries take from it; each function aborts.
"""

import collections
import pathlib
import re
import subprocess
import sys
import tempfile


def run(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def needed(library):
    return re.findall(r"\(NEEDED\).*\[(.*)\]", run("readelf", "-d", library))


def defined(library):
    """name -> version of what a library exports."""
    rows = re.findall(r" (?:[TWVDBRi]|A) (\S+)$", run("nm", "-D", "--defined-only", library), re.M)
    return {row.split("@")[0]: row.partition("@@")[2] or row.partition("@")[2] for row in rows}


def undefined(library):
    return set(re.findall(r" [UwV] ([^@\s]+)", run("nm", "-D", "--undefined-only", library)))


def where_is(name):
    for line in run("ldconfig", "-p").splitlines():
        if line.strip().startswith(name + " "):
            return line.split("=> ")[1]
    sys.exit(f"{name}: not found")


def make(folder, name, wanted):
    exported = defined(where_is(name))
    versions = collections.defaultdict(list)
    for symbol in sorted(wanted & exported.keys()):
        versions[exported[symbol]].append(symbol)
    with tempfile.TemporaryDirectory() as work:
        source, script = pathlib.Path(work, "stub.c"), pathlib.Path(work, "stub.map")
        lines = ["void abort(void);"]
        script_lines = []
        for version, symbols in versions.items():
            lines += [f"void {s}(void) {{ abort(); }}" for s in symbols]
            if version:
                script_lines.append(f"{version} {{ global: {'; '.join(symbols)}; }};")
        source.write_text("\n".join(lines))
        command = ["cc", "-shared", "-fPIC", "-w", "-fno-builtin", "-O1", f"-Wl,-soname,{name}",
                   str(source), "-o", str(folder / name)]
        if script_lines:
            script.write_text("\n".join(script_lines))
            command.insert(1, f"-Wl,--version-script,{script}")
        run(*command)


def main():
    folder, pattern = pathlib.Path(sys.argv[1]), re.compile(sys.argv[2])
    libraries = [str(p) for p in folder.iterdir()]
    wanted = {n for l in libraries for n in needed(l) if pattern.match(n)}
    symbols = set().union(*(undefined(l) for l in libraries))
    for name in sorted(wanted):
        make(folder, name, symbols)


if __name__ == "__main__":
    main()
