"""Training steps in bf16 on a GPU against PyTorch, eager and compiled, on weights and batches that
training_networks.py makes. Our steps repeat one batch on values that stay on the device, as peers' do;
`heddle train` also copies them in and out (docs/training.md).
"""
import json
import pathlib
import sys

import gpu_targets

# Optimiser and learning rate, as in bench/peers/training_networks.py; in this order as long as time is left.
NETWORKS = {"bert-base": ("adamw", 1e-4), "vit-b16": ("adamw", 1e-4), "resnet50": ("momentum", 1e-3)}
OVER_PEERS = 1.26  # EVT's own lower bound (Chen et al., ASPLOS 2024)
REQUIRED = "torch-compile"  # gpu_targets.best_ratio proves nothing without it
LEAST = 60  # seconds; a step with less would only time out


def step(run, heddle, root, network, peers, clock, arguments):
    """What `heddle bench --train` says, or {"error": …}."""
    optimizer, rate = NETWORKS[network]
    folder = root / "build/training" / network
    made = run([sys.executable, "bench/peers/training_networks.py", folder.parent, network], min(120, clock.left()))
    if made[0] != 0:
        return {"error": gpu_targets.reason(made[2])}
    batch = [f"--input={file.stem}={file}" for file in sorted(folder.glob("*.npy"))]
    code, out, error, _ = run(
        [heddle, "bench", folder / "model.onnx", "--train", "cross_entropy", "--optimizer", optimizer,
         "--learning-rate", rate, *batch, "--device", "cuda", "--precision", "bf16", "--json", "--duration",
         arguments.duration, "--rounds", 6, "--vs", ",".join(peers), "--peer-timeout", 240, "--venv",
         pathlib.Path(sys.executable).parent.parent], min(400, clock.left()))
    return json.loads(out) if code == 0 else {"error": gpu_targets.reason(error)}


def measure(run, heddle, root, clock, arguments):
    rows, peers = [], [p for p in arguments.peers if p.startswith("torch")]
    for network in NETWORKS:
        row = {"model": network, "precision": "bf16"}
        rows.append(row)
        if clock.left() < LEAST or REQUIRED not in peers:
            row["error"] = "no time left" if REQUIRED in peers else f"{REQUIRED} is not among the peers"
            continue
        row |= {k: v for k, v in step(run, heddle, root, network, peers, clock, arguments).items() if k not in row}
        row["best_peer_ratio"] = gpu_targets.best_ratio(row)
        print(f"training {network}: {row.get('error') or [cell(row, p) for p in peers]}", flush=True)
    return rows


def disagreeing(rows):
    """Networks whose losses are not those of a peer: a failure, however fast they are."""
    return [r["model"] for r in rows
            if any(not p.get("error") and not p.get("agrees") for p in r.get("peers", {}).values())]


def verdicts(rows):
    found = {r["model"]: gpu_targets.best_ratio(r) for r in rows}
    return [gpu_targets.verdict("training steps in bf16, over the better of PyTorch eager and torch.compile",
                                OVER_PEERS, [found.get(network) for network in NETWORKS])]


def cell(row, peer):
    p = row.get("peers", {}).get(peer)
    if not p:
        return "–"
    if p.get("error"):
        return p["error"].replace("|", "/")[:60]
    differ = f"differ by {p['difference']:.0e}"
    return f"{p['median_ms']:.3f} ({p['ratio']:.2f}×, losses {differ}{'' if p.get('agrees') else ': DISAGREE'})"


def markdown(rows, peers):
    peers = [p for p in peers if p.startswith("torch")]
    lines = ["", f"Training steps in bf16, weights and states on the device (wanted: {OVER_PEERS}× or better over the "
             "faster peer, losses of four steps alike):", "",
             "| network | Heddle ms | " + " | ".join(peers) + " | |", "|---" * (3 + len(peers)) + "|"]
    for row in rows:
        ours = row["error"].replace("|", "/")[:80] if row.get("error") else f"{row['heddle']['median_ms']:.3f}"
        state = gpu_targets.verdict("", OVER_PEERS, [gpu_targets.best_ratio(row)])["state"]
        lines.append(f"| {row['model']} | {ours} | " + "".join(f"{cell(row, p)} | " for p in peers) + f"{state} |")
    return lines
