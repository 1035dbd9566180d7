"""ONNX Runtime, CPU, as a peer: its best settings for latency, with the threads it is given."""

import numpy as np
import onnxruntime as ort


def version():
    return ort.__version__


PRECISIONS = {"f32": "f32"}  # of a float32 model its CPU provider computes nothing else


def load(model_path, threads, _precision, inputs):
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.log_severity_level = 3
    # Spinning stays on: it is the default and the fastest for runs back to back. The workers go on
    # spinning for some 60 ms after a run; serve.py waits that out before it replies.
    options.add_session_config_entry("session.intra_op.allow_spinning", "1")
    return Session(ort.InferenceSession(model_path, options, providers=["CPUExecutionProvider"]),
                   inputs)


class Session:
    """Inputs and outputs are bound once: a run neither copies nor allocates in Python."""

    def __init__(self, session, inputs):
        self._session = session
        wanted = [value.name for value in session.get_inputs()]
        if set(inputs) != set(wanted):
            raise ValueError(f"inputs are {sorted(inputs)}, want {sorted(wanted)}")
        self._binding = session.io_binding()
        self._inputs = {name: ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array))
                        for name, array in inputs.items()}
        for name, value in self._inputs.items():
            self._binding.bind_ortvalue_input(name, value)
        self._names = [value.name for value in session.get_outputs()]
        self._bind_outputs()

    def _bind_outputs(self):
        """Lets ONNX Runtime allocate the outputs once and binds those buffers for good; outputs
        that are not tensors stay allocated by each run."""
        for name in self._names:
            self._binding.bind_output(name, "cpu")
        self._session.run_with_iobinding(self._binding)
        self._outputs = dict(zip(self._names, self._binding.get_outputs()))
        if all(value.is_tensor() for value in self._outputs.values()):
            self._binding.clear_binding_outputs()
            for name, value in self._outputs.items():
                self._binding.bind_ortvalue_output(name, value)
        self.run = self._run

    def _run(self):
        self._session.run_with_iobinding(self._binding)

    def outputs(self):
        return {name: value.numpy() for name, value in zip(self._names, self._binding.get_outputs())}
