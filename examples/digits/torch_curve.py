#!/usr/bin/env python3
"""PyTorch's losses of the same training: same weights, batches and recipe. Needs an environment with torch.

    build/peers/bin/python examples/digits/torch_curve.py FOLDER NETWORK    prints a JSON list
    build/peers/bin/python examples/digits/torch_curve.py --record          writes curves.json beside this file
(FOLDER: what train.py prepares.)
"""
import json
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import onnx
import onnx.numpy_helper
import torch
import torch.nn.functional as F

import networks


def cnn(x, w):
    for i in range(2):
        x = F.max_pool2d(F.relu(F.conv2d(x, w[f"conv{i}.w"], w[f"conv{i}.b"], padding=1)), 2)
    return x.flatten(1) @ w["y.w"] + w["y.b"]


def transformer(x, w):
    n, width, heads = x.shape[0], networks.WIDTH, networks.HEADS

    def linear(name, v):
        return v @ w[f"{name}.w"] + w[f"{name}.b"]

    def norm(name, v):
        return F.layer_norm(v, (width,), w[f"{name}.g"], w[f"{name}.b"])
    h = x.reshape(n, 4, 2, 4, 2).permute(0, 1, 3, 2, 4).reshape(n, networks.TOKENS, 4)
    h = linear("embed", h) + w["position"]
    for i in range(networks.BLOCKS):
        v = norm(f"norm{i}", h)
        q, k, v = (linear(f"{part}{i}", v).reshape(n, -1, heads, width // heads).transpose(1, 2) for part in "qkv")
        shares = torch.softmax(q @ k.transpose(2, 3) * (width // heads) ** -0.5, -1)
        h = h + linear(f"out{i}", (shares @ v).transpose(1, 2).reshape(n, -1, width))
        h = h + linear(f"down{i}", F.gelu(linear(f"up{i}", norm(f"norm_mlp{i}", h))))
    return linear("y", norm("norm", h).mean(1))


def curve(folder, name):
    torch.set_num_threads(2)
    recipe = networks.RECIPES[name]
    model = onnx.load(folder / "model.onnx")
    w = {t.name: torch.tensor(onnx.numpy_helper.to_array(t)) for t in model.graph.initializer}
    trained = [t.requires_grad_() for t in w.values() if t.is_floating_point() and t.dim() > 0]
    rate, decay = recipe["rate"], networks.DECAY
    optimizer = (torch.optim.SGD(trained, rate, momentum=0.9, weight_decay=decay)
                 if recipe["optimizer"] == "momentum" else torch.optim.AdamW(trained, rate, weight_decay=decay))
    x, y = (torch.tensor(np.load(folder / f"{part}.npy")) for part in "xy")
    forward = {"cnn": cnn, "transformer": transformer}[name]
    losses = []
    for _ in range(recipe["epochs"]):
        for first in range(0, len(x) - networks.BATCH + 1, networks.BATCH):
            rows = slice(first, first + networks.BATCH)
            loss = F.cross_entropy(forward(x[rows], w), y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses


def record():
    """Folders are prepared by the environment that has scikit-learn."""
    here = pathlib.Path(__file__).resolve().parent
    curves = {}
    for name in networks.NETWORKS:
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([here.parent.parent / "build/venv/bin/python", "-c",
                            "import pathlib, sys, train; train.prepare(sys.argv[1], pathlib.Path(sys.argv[2]))",
                            name, folder], check=True, cwd=here)
            curves[name] = [float(f"{v:.6g}") for v in curve(pathlib.Path(folder), name)]
    rows = ",\n".join(f'  "{name}": {json.dumps(values)}' for name, values in curves.items())
    (here / "curves.json").write_text(f"{{\n{rows}\n}}\n")


if __name__ == "__main__":
    if sys.argv[1:] == ["--record"]:
        record()
    else:
        print(json.dumps(curve(pathlib.Path(sys.argv[1]), sys.argv[2])))
