#!/usr/bin/env python3
"""Measures training steps against PyTorch and writes docs/training-speed.json and docs/training-speed.md.

Run on an otherwise idle machine, from the checkout, after bench/setup_peers.sh:

    build/venv/bin/python bench/training.py            # every network, about ten minutes
    build/venv/bin/python bench/training.py --networks mlp,gcn --duration 1

Every ratio comes from one interleaved run of `heddle bench --train --vs`, on the same weights and
batch; the losses of the first steps are compared. What is measured is kept, whatever else there is.
"""
import argparse
import datetime
import json
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent
HEDDLE = ROOT / "build/bin/heddle"
FOLDER = ROOT / "build/training"
# As in bench/peers/training_networks.py: optimiser and learning rate.
NETWORKS = {"bert-mini": ("adamw", 1e-4), "vit-tiny": ("adamw", 1e-4), "resnet18": ("momentum", 1e-3),
            "gcn": ("adam", 1e-3), "mlp": ("adamw", 1e-4)}
WHAT = {"bert-mini": "4 layers of 256, batch 8 x 128 tokens", "vit-tiny": "12 layers of 192, batch 4 x 224²",
        "resnet18": "batch 16 x 32²", "gcn": "8192 nodes, 65536 edges, 256-128-16",
        "mlp": "784-1024-1024-10, batch 256"}
PEERS = ("torch", "torch-compile")


def call(*arguments):
    done = subprocess.run([str(a) for a in arguments], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{arguments}: exit code {done.returncode}\n{done.stderr}")
    return done.stdout


def bench(network, flags):
    folder = FOLDER / network
    if not (folder / "model.onnx").exists():
        call(ROOT / "build/peers/bin/python", ROOT / "bench/peers/training_networks.py", FOLDER, network)
    optimizer, rate = NETWORKS[network]
    batch = [f"--input={file.stem}={file}" for file in sorted(folder.glob("*.npy"))]
    return json.loads(call(HEDDLE, "bench", folder / "model.onnx", "--train", "cross_entropy",
                           "--optimizer", optimizer, "--learning-rate", rate, *batch, "--threads",
                           flags.threads, "--duration", flags.duration, "--rounds", flags.rounds,
                           "--vs", ",".join(PEERS), "--json"))


def row_of(network, result):
    peers = {n: p for n, p in result["peers"].items() if not p["error"] and p["agrees"]}
    if not peers:
        raise SystemExit(f"{network}: no peer ran or agreed: {result['peers']}")
    best = min(peers, key=lambda n: peers[n]["ratio"])
    result["model"] = f"build/training/{network}/model.onnx"  # not where this checkout is
    return {"network": network, "what": WHAT[network], **result, "best_peer": best,
            "ratio": peers[best]["ratio"], "peak_ratio": result["heddle"]["peak_mb"]
            / min(p["peak_mb"] for p in peers.values())}


def write(data, folder):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "training-speed.json").write_text(json.dumps(data, indent=1) + "\n")
    lines = ["# Training steps\n", "Made by `bench/training.py`; do not edit.\n",
             "Forward, backward and update on one batch, f32. A ratio is the peer's median over Heddle's, "
             "both from the\nsame interleaved run; above 1 Heddle is faster. Peaks are of the process's "
             "resident memory while it steps,\nafter compiling; PyTorch's libraries are part of its own "
             "(in brackets: above what the process held before\nit read the model). PyTorch's optimisers "
             "are its fused ones. Losses are those of the first four steps."]
    for machine, measured in data["machines"].items():
        lines += table(machine, measured)
    (folder / "training-speed.md").write_text("\n".join(lines) + "\n")


def table(machine, data):
    lines = [f"\n## {machine}, {data['date']}\n",
             "| network | threads | Heddle ms (95 % interval) | torch | torch.compile | ratio to the better | "
             "peak MB | torch | torch.compile | kernels | losses differ by |", "|---" * 11 + "|"]
    for r in data["rows"]:
        h = r["heddle"]

        def cell(name, what):
            p = r["peers"][name]
            if p["error"]:
                return "error"
            return what(p)

        def peak(p):
            return f"{p['peak_mb']:.0f} ({p['peak_mb'] - p['base_mb']:.0f})"

        low, high = h["median_ci_ms"]
        differ = max(p["difference"] for p in r["peers"].values() if not p["error"])
        lines.append(f"| {r['network']}: {r['what']}, {r['optimizer']} | {r['threads']} | {h['median_ms']:.2f} "
                     f"({low:.2f}–{high:.2f}) | " + " | ".join(
                         cell(n, lambda p: f"{p['median_ms']:.2f}") for n in PEERS)
                     + f" | **{r['ratio']:.2f}×** | {peak(h)} | "
                     + " | ".join(cell(n, peak) for n in PEERS) + f" | {h['kernels']} | {differ:.0e} |")
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--networks", default=",".join(NETWORKS))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--duration", type=float, default=4, help="seconds of measuring for each contestant")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "docs")
    flags = parser.parse_args()
    cpu = json.loads(call(HEDDLE, "doctor", "--json"))["cpu"]
    old = flags.out / "training-speed.json"
    data = json.loads(old.read_text()) if old.exists() else {"machines": {}}
    machine = (f"{cpu['name']}, {8 * cpu['vector_bytes']}-bit vectors{', tile registers (AMX)' * cpu['tiles']}, "
               f"{cpu['threads']} threads")
    here = data["machines"].setdefault(machine, {"rows": []})
    for network in flags.networks.split(","):
        row = row_of(network, bench(network, flags))
        here["rows"] = [r for r in here["rows"]
                        if (r["network"], r["threads"]) != (network, row["threads"])] + [row]
        here["rows"].sort(key=lambda r: (-r["threads"], list(NETWORKS).index(r["network"])))
        here["date"] = datetime.date.today().isoformat()
        print(f"{network}: {row['ratio']:.2f} ({row['best_peer']}), peak {row['peak_ratio']:.2f}", flush=True)
        write(data, flags.out)


if __name__ == "__main__":
    main()
