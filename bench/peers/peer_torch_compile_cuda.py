"""PyTorch with torch.compile on the GPU: kernels chosen by measurement, replayed as a CUDA graph."""

import torch
import torch._inductor.config as inductor

import peer_torch_cuda

PRECISIONS = peer_torch_cuda.PRECISIONS
version = peer_torch_cuda.version


def load(model_path, threads, precision, inputs):
    inductor.freezing = True
    session = peer_torch_cuda.load(model_path, threads, precision, inputs)
    compiled = torch.compile(session._function, mode="max-autotune", dynamic=False)
    for _ in range(3):  # compiles, then captures
        compiled(*session._arguments)
    return peer_torch_cuda.Session(compiled, session._arguments, session._names)
