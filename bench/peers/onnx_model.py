"""What several peers need to know of an ONNX file."""

import hashlib
import pathlib
import sys
import tempfile

import onnx
import onnxruntime


def ports(path):
    """Names of inputs (initialisers left out) and outputs, in order."""
    graph = onnx.load(path, load_external_data=False).graph
    constants = {tensor.name for tensor in graph.initializer}
    return ([port.name for port in graph.input if port.name not in constants],
            [port.name for port in graph.output])


def ordered(path, inputs):
    """The inputs in the model's order."""
    names = ports(path)[0]
    if set(inputs) != set(names):
        raise ValueError(f"inputs are {sorted(inputs)}, want {sorted(names)}")
    return [inputs[name] for name in names]


def folded(path):
    """The model with its constant subgraphs computed (by ONNX Runtime's basic level, which keeps to
    ONNX operators): converters would trip over the shape arithmetic that exporters leave behind."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.log_severity_level = 3
    with tempfile.TemporaryDirectory() as folder:
        options.optimized_model_filepath = f"{folder}/model.onnx"
        onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        model = onnx.load(options.optimized_model_filepath)
    for node in model.graph.node:
        while node.input and not node.input[-1]:  # optional and absent: some converters trip
            del node.input[-1]
    used = {node.domain for node in model.graph.node} | {""}
    opsets = [opset for opset in model.opset_import if opset.domain in used]
    del model.opset_import[:]
    model.opset_import.extend(opsets)
    return model


def cached(path, *settings):
    """A path, without ending, for what a peer compiled from the model under `settings` (versions
    included): a second comparison need not compile again. In the peers' environment."""
    digest = hashlib.sha256(repr(settings).encode())
    with open(path, "rb") as file:
        while block := file.read(1 << 24):
            digest.update(block)
    folder = pathlib.Path(sys.prefix, "compiled")
    folder.mkdir(exist_ok=True)
    return str(folder / digest.hexdigest()[:24])
