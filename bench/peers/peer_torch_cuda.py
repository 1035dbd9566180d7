"""PyTorch, eager, on the GPU: the model and its inputs are there before the first run."""

import torch

import peer_torch

PRECISIONS = peer_torch.PRECISIONS | {"tf32": torch.float32}
version = peer_torch.version



def load(model_path, threads, precision, inputs):
    # f32 is f32 for everybody, unless tf32 is asked for.
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision == "tf32"
    session = peer_torch.load(model_path, threads, "f32" if precision == "tf32" else precision,
                              inputs)
    return Session(session._function.to("cuda"), [a.to("cuda") for a in session._arguments],
                   session._names)


class Session(peer_torch.Session):
    def run(self):
        super().run()
        torch.cuda.synchronize()

    def outputs(self):
        results = self._result if isinstance(self._result, (tuple, list)) else [self._result]
        return {name: (value.float() if value.is_floating_point() else value).cpu().numpy()
                for name, value in zip(self._names, results)}
