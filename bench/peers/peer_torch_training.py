"""PyTorch, eager: training steps of a network of training_networks.py, with its fused optimisers."""

import ctypes
import pathlib

import numpy as np
import onnx
import torch
from onnx import numpy_helper
from torch.nn import functional as F

import training_networks

PRECISIONS = {"f32": torch.float32}
FIRST = 4  # steps whose losses are compared
RULES = {
    "sgd": lambda p, rate: torch.optim.SGD(p, rate, fused=True),
    "momentum": lambda p, rate: torch.optim.SGD(p, rate, momentum=0.9, fused=True),
    "adam": lambda p, rate: torch.optim.Adam(p, rate, fused=True),
    "adamw": lambda p, rate: torch.optim.AdamW(p, rate, weight_decay=0, fused=True),
}
LOSSES = {"cross_entropy": F.cross_entropy, "mse": F.mse_loss}


def version():
    return torch.__version__


def resident_mb(key):
    status = pathlib.Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if key in line) / 1024


def load(model_path, threads, precision, inputs, training, wrap=lambda function: function,
         device="cpu"):
    torch.set_num_threads(threads)
    base = resident_mb("VmRSS")
    model = onnx.load(model_path)
    name = {p.key: p.value for p in model.metadata_props}["heddle.network"]
    weights = {t.name: torch.from_numpy(numpy_helper.to_array(t).copy()) for t in model.graph.initializer}
    del model
    module = training_networks.make(name).module
    module.load_state_dict({k: weights.get(k, v) for k, v in module.state_dict().items()})
    module.to(device)
    del weights
    tensors = {k: torch.from_numpy(np.ascontiguousarray(v)).to(device) for k, v in inputs.items()}
    target = tensors.pop("target")
    tensors = {k: tensors[k] for k in training_networks.make(name).inputs}
    return Session(module, list(tensors.values()), target, training, wrap, base)


class Session:
    after = staticmethod(lambda: None)  # what a run waits for

    def __init__(self, module, arguments, target, training, wrap, base):
        self._module = module.train()
        loss = LOSSES[training["loss"]]
        self._forward = wrap(lambda *a: loss(module(*a[:-1]), a[-1]))
        self._arguments = (*arguments, target)
        self._optimizer = RULES[training["optimizer"]](list(module.parameters()), training["rate"])
        self._losses = []
        for _ in range(FIRST):
            self.run()
            self._losses.append(self._loss.item())
        ctypes.CDLL("libc.so.6").malloc_trim(0)
        pathlib.Path("/proc/self/clear_refs").write_text("5")  # the peak from here on
        self.base_mb = base

    def run(self):
        self._optimizer.zero_grad(set_to_none=True)
        self._loss = self._forward(*self._arguments)
        self._loss.backward()
        self._optimizer.step()
        self.after()

    def outputs(self):
        return {"loss": np.array(self._losses, np.float32)}
