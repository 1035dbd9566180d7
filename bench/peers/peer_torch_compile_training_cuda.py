"""PyTorch's training steps on the GPU by torch.compile, kernels chosen by measurement."""

import torch

import peer_torch_training_cuda

PRECISIONS = peer_torch_training_cuda.PRECISIONS
version = peer_torch_training_cuda.version


def load(model_path, threads, precision, inputs, training):
    return peer_torch_training_cuda.load(
        model_path, threads, precision, inputs, training,
        lambda function: torch.compile(function, mode="max-autotune", dynamic=False))
