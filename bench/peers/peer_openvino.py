"""OpenVINO, CPU plugin: one stream for latency, at exactly the precision that is asked for."""

import numpy as np
import openvino as ov

import onnx_model

PRECISIONS = {"f32": "f32", "bf16": "bf16", "f16": "f16"}


def version():
    return ov.get_version().split("-")[0]


def load(model_path, threads, precision, inputs):
    # Without the hint the plugin chooses bf16 where the machine has it.
    compiled = ov.Core().compile_model(model_path, "CPU", {
        "INFERENCE_NUM_THREADS": str(threads), "NUM_STREAMS": "1", "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": PRECISIONS[precision]})
    return Session(compiled, onnx_model.ports(model_path)[1], inputs)


class Session:
    def __init__(self, compiled, names, inputs):
        self._names = names
        self._request = compiled.create_infer_request()
        self._inputs = {name: np.ascontiguousarray(array) for name, array in inputs.items()}
        for name, array in self._inputs.items():
            self._request.set_tensor(name, ov.Tensor(array, shared_memory=True))

    def run(self):
        self._request.start_async()  # infer() would also wrap every output for Python
        self._request.wait()

    def outputs(self):
        return {name: np.array(self._request.get_output_tensor(i).data)
                for i, name in enumerate(self._names)}
