"""PyTorch, eager, on the module that onnx2torch makes of the model."""

import numpy as np
import onnx2torch
import torch
from onnx2torch.node_converters.flatten import OnnxFlatten

import onnx_model

PRECISIONS = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
# The converter's own fails where the axis is the rank (BERT's pooling mask).
OnnxFlatten.forward = lambda self, x: x.reshape(x.shape[:self.axis].numel(), -1)


def version():
    return torch.__version__


def load(model_path, threads, precision, inputs):
    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    module = onnx2torch.convert(onnx_model.folded(model_path)).eval().to(PRECISIONS[precision])
    arguments = [torch.from_numpy(np.ascontiguousarray(array))
                 for array in onnx_model.ordered(model_path, inputs)]
    arguments = [a.to(PRECISIONS[precision]) if a.is_floating_point() else a for a in arguments]
    return Session(module, arguments, onnx_model.ports(model_path)[1])


class Session:
    def __init__(self, function, arguments, names):
        self._function, self._arguments, self._names = function, arguments, names

    def run(self):
        self._result = self._function(*self._arguments)

    def outputs(self):
        results = self._result if isinstance(self._result, (tuple, list)) else [self._result]
        return {name: (value.float() if value.is_floating_point() else value).numpy()
                for name, value in zip(self._names, results)}
