#!/usr/bin/env python3
"""Networks beyond the zoo (zoo/beyond.py) against other runtimes (docs/beyond.md): what no schedule
was searched for and nothing was looked at first. Each is exported where it is missing, and runs
interleaved with the peers.

  bench/beyond.py [--threads 1,2] [--peers ort,openvino] [--precision bf16] [--page] [network…]
"""
import argparse
import datetime
import json
import pathlib
import statistics
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDER, PYTHON = ROOT / "build/beyond", ROOT / "build/peers/bin/python"
PAGE = ROOT / "docs" / "beyond.md"
DATA = PAGE.with_suffix(".json")

HEAD = """# Networks beyond the zoo

Made by `bench/beyond.py`; do not edit.

Networks of `zoo/beyond.py`, exported from PyTorch with random weights: no schedule that ships was searched on them. Heddle
plans them from its cost model (`--budget none`), in f32 where a title names no other precision. Medians in ms, each peer's
over Heddle's, interleaved in one run."""


def export(names):
    if not PYTHON.exists():
        raise SystemExit("bench/beyond.py: no build/peers; bench/setup_peers.sh makes it")
    if subprocess.run([PYTHON, ROOT / "zoo/beyond.py", FOLDER, *names], check=False).returncode:
        raise SystemExit(1)
    return names or sorted(p.parent.name for p in FOLDER.glob("*/model.onnx"))


def measured(name, threads, peers, precision, duration):
    command = [ROOT / "build/bin/heddle", "bench", FOLDER / name, "--threads", str(threads),
               "--vs", peers, "--precision", precision, "--json", "--duration", str(duration)]
    result = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    found = {"network": name, "heddle_ms": result["heddle"]["median_ms"]}
    for peer, p in result["peers"].items():
        found[peer] = p["ratio"] if p["error"] is None and p["agrees"] else None
    return found


def table(title, here):
    peers = here["peers"]
    lines = [f"\n## {title}, {here['date']}\n",
             "| network | Heddle ms | " + " | ".join(peers) + " | best |", "|---" * (len(peers) + 3) + "|"]
    best = []
    for r in here["rows"]:
        ratios = [r[p] for p in peers]
        best.append(min(x for x in ratios if x is not None))
        shown = " | ".join("error" if x is None else f"{x:.2f}×" for x in ratios)
        lines.append(f"| {r['network']} | {r['heddle_ms']:.3f} | {shown} | **{best[-1]:.2f}×** |")
    mean = statistics.geometric_mean(best)
    return lines + ["| geometric mean |" + " |" * (len(peers) + 1) + f" **{mean:.2f}×** |"]


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--peers", default="ort,openvino")
    parser.add_argument("--precision", default="f32", choices=["f32", "bf16"])
    parser.add_argument("--duration", type=float, default=0.5, help="seconds of each contestant")
    parser.add_argument("--page", action="store_true", help=f"write {PAGE.relative_to(ROOT)}")
    parser.add_argument("networks", nargs="*")
    args = parser.parse_args()
    names = export(args.networks)
    kept = json.loads(DATA.read_text()) if DATA.exists() else {}
    report = json.loads(subprocess.run([ROOT / "build/bin/heddle", "doctor", "--json"], check=True,
                                       capture_output=True, text=True).stdout)
    for threads in map(int, args.threads.split(",")):
        here = {"date": datetime.date.today().isoformat(), "peers": args.peers.split(","),
                "rows": [measured(n, threads, args.peers, args.precision, args.duration) for n in names]}
        title = f"{report['cpu']['name']}, {threads} thread{'s' if threads > 1 else ''}"
        title += f", {args.precision}" if args.precision != "f32" else ""
        print("\n".join(table(title, here)), flush=True)
        kept[title] = here
    if args.page:
        DATA.write_text(json.dumps(kept, indent=1) + "\n")
        PAGE.write_text("\n".join([HEAD] + [x for t, here in kept.items() for x in table(t, here)]) + "\n")


if __name__ == "__main__":
    main()
