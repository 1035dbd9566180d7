"""TVM: Relax's ONNX frontend and its default pipeline for this machine. Not tuned: a search takes
hours where the other peers take seconds, and what is compared here is what a user gets at once."""

import pathlib

import numpy as np
import tvm
from tvm import relax
from tvm.relax.frontend.onnx import from_onnx

import onnx_model

PRECISIONS = {"f32": "f32"}


def version():
    return tvm.__version__


def compiled(model_path, target, inputs):
    path = pathlib.Path(onnx_model.cached(model_path, "tvm", version(), str(target)) + ".so")
    if not path.exists():
        module = from_onnx(onnx_model.folded(model_path), {n: a.shape for n, a in inputs.items()},
                           {n: str(a.dtype) for n, a in inputs.items()})
        partial = path.with_suffix(".partial.so")
        tvm.compile(module, target=target).export_library(str(partial))
        partial.rename(path)
    return path


def load(model_path, _threads, _precision, inputs):
    arrays = onnx_model.ordered(model_path, inputs)  # threads: TVM_NUM_THREADS
    target = tvm.target.Target.from_device(tvm.cpu())
    machine = relax.VirtualMachine(tvm.runtime.load_module(str(compiled(model_path, target, inputs))),
                                   tvm.cpu())
    return Session(machine, [tvm.runtime.tensor(np.ascontiguousarray(a), tvm.cpu()) for a in arrays],
                   onnx_model.ports(model_path)[1])


class Session:
    def __init__(self, machine, arguments, names):
        self._main, self._arguments, self._names = machine["main"], arguments, names

    def run(self):
        self._result = self._main(*self._arguments)

    def outputs(self):
        single = isinstance(self._result, tvm.runtime.Tensor)
        return {name: value.numpy()
                for name, value in zip(self._names, [self._result] if single else self._result)}
