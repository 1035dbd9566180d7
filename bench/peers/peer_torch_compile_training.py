"""PyTorch with torch.compile (Inductor): forward, loss and backward compiled, fused optimisers."""

import torch

import peer_torch_training

PRECISIONS = peer_torch_training.PRECISIONS
version = peer_torch_training.version


def load(model_path, threads, precision, inputs, training):
    return peer_torch_training.load(model_path, threads, precision, inputs, training,
                                    lambda function: torch.compile(function, dynamic=False))
