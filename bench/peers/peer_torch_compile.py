"""PyTorch with torch.compile (Inductor), constants frozen: its settings for inference on a CPU."""

import torch
import torch._inductor.config as inductor
from onnx2torch.node_converters.expand import OnnxExpand
from onnx2torch.node_converters.reshape import OnnxReshape

import peer_torch

PRECISIONS = peer_torch.PRECISIONS
version = peer_torch.version


# Of the converter's modules, those that take a shape as a tensor, and what they do.
SHAPED = {OnnxReshape: torch.reshape, OnnxExpand: torch.broadcast_to}


def fix_shapes(session):
    """Dynamo cannot make sizes of such tensors: the shapes of one eager run stand in for them."""
    def keep(module, _arguments, result):
        function, shape = SHAPED[type(module)], tuple(result.shape)
        module.forward = lambda x, _shape: function(x, shape)

    hooks = [module.register_forward_hook(keep) for module in session._function.modules()
             if type(module) in SHAPED]
    session.run()
    for hook in hooks:
        hook.remove()


def load(model_path, threads, precision, inputs):
    inductor.freezing = True  # folds constants and packs weights
    session = peer_torch.load(model_path, threads, precision, inputs)
    fix_shapes(session)
    compiled = torch.compile(session._function, dynamic=False, fullgraph=False)
    return peer_torch.Session(compiled, session._arguments, session._names)
