"""PyTorch with torch.compile (Inductor), constants frozen: its settings for inference on a CPU."""

import torch
import torch._inductor.config as inductor

import peer_torch

PRECISIONS = peer_torch.PRECISIONS
version = peer_torch.version


def load(model_path, threads, precision, inputs):
    inductor.freezing = True  # folds constants and packs weights
    session = peer_torch.load(model_path, threads, precision, inputs)
    compiled = torch.compile(session._function, dynamic=False, fullgraph=False)
    return peer_torch.Session(compiled, session._arguments, session._names)
