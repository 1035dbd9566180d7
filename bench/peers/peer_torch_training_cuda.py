"""PyTorch's training steps on the GPU: bf16 by autocast, weights and states in f32."""

import torch

import peer_torch_training

PRECISIONS = {"f32": None, "bf16": torch.bfloat16}
version = peer_torch_training.version


def load(model_path, threads, precision, inputs, training, wrap=lambda function: function):
    def cast(function):
        if precision == "f32":
            return wrap(function)

        def autocast(*arguments):
            with torch.autocast("cuda", dtype=PRECISIONS[precision]):
                return function(*arguments)

        return wrap(autocast)

    session = peer_torch_training.load(model_path, threads, "f32", inputs, training, cast, "cuda")
    session.after = torch.cuda.synchronize
    return session
