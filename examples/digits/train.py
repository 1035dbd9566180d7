#!/usr/bin/env python3
"""Trains a network on scikit-learn's digits with `heddle train` and tries it on unseen ones with ONNX Runtime.

    build/venv/bin/python examples/digits/train.py cnn|transformer [--heddle build/bin/heddle] [--folder DIR] [flags of heddle train]
"""
import argparse
import json
import pathlib
import subprocess

import numpy as np
import onnx
import onnxruntime

import networks


def prepare(name, folder):
    """Writes model.onnx, x.npy and y.npy."""
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(networks.NETWORKS[name](), folder / "model.onnx")
    (x, y), _ = networks.digits()
    np.save(folder / "x.npy", x)
    np.save(folder / "y.npy", y)


def command(name, folder, heddle, *flags):
    recipe = networks.RECIPES[name]
    return [str(heddle), "train", str(folder / "model.onnx"), "--data", f"x={folder}/x.npy",
            "--target", f"{folder}/y.npy", "--loss", "cross_entropy", "--optimizer", recipe["optimizer"],
            "--lr", str(recipe["rate"]), "--weight-decay", str(networks.DECAY),
            "--epochs", str(recipe["epochs"]), "--in-order", "-o", str(folder / "trained.onnx"), *flags]


def accuracy(path):
    """The share of unseen digits that the model gets right, in batches of its size."""
    _, (x, y) = networks.digits()
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    right = 0
    for first in range(0, len(x), networks.BATCH):
        part = x[first:first + networks.BATCH]
        rows = np.zeros((networks.BATCH, *x.shape[1:]), np.float32)
        rows[:len(part)] = part
        scores = session.run(None, {"x": rows})[0][:len(part)]
        right += int((scores.argmax(1) == y[first:first + len(part)]).sum())
    return right / len(x)


def train(name, folder, heddle, *flags):
    """The losses of all steps, and the accuracy of the exported model."""
    prepare(name, folder)
    done = subprocess.run(command(name, folder, heddle, "--json", *flags), capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(done.stderr)
    return json.loads(done.stdout)["losses"], accuracy(folder / "trained.onnx")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("network", choices=networks.NETWORKS)
    parser.add_argument("--heddle", default="build/bin/heddle")
    parser.add_argument("--folder", type=pathlib.Path, default=pathlib.Path("build/examples/digits"))
    given, flags = parser.parse_known_args()
    folder = given.folder / given.network
    prepare(given.network, folder)
    subprocess.run(command(given.network, folder, given.heddle, *flags), check=True)
    print(f"{accuracy(folder / 'trained.onnx'):.1%} of unseen digits are right")


if __name__ == "__main__":
    main()
