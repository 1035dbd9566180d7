"""`onnx.backend.base.Backend` over heddle.InferenceSession, for onnx's own test runner."""

from onnx.backend import base
from onnx.backend.test.runner import BackendIsNotSupposedToImplementIt

import heddle

refusals = []  # what was refused, for those who count: onnx's runner takes it for passed
UNSUPPORTED = 3  # exit code of `heddle` for what a model uses and Heddle does not have


def refused(reason):
    refusals.append(reason)
    return BackendIsNotSupposedToImplementIt(reason)


class Prepared(base.BackendRep):
    def __init__(self, session):
        self._session = session

    def run(self, inputs, **kwargs):
        if isinstance(inputs, dict):
            feeds = inputs
        else:
            feeds = dict(zip(self._session.input_names, inputs))
        try:
            return tuple(self._session.run(None, feeds))
        except heddle.HeddleError as error:
            if error.code == UNSUPPORTED:
                raise refused(str(error)) from error
            raise


class Backend(base.Backend):
    @classmethod
    def prepare(cls, model, device="CPU", **kwargs):
        return Prepared(heddle.InferenceSession(model))

    @classmethod
    def supports_device(cls, device):
        return device == "CPU"


prepare = Backend.prepare
run_model = Backend.run_model
supports_device = Backend.supports_device
