"""Quantises models of the zoo to int8 with ONNX Runtime's static quantiser (QDQ).

    python zoo/quantise.py ZOO_DIR OUT_DIR [MODEL ...]

Activations are u8 for each tensor, weights i8 for each channel.  Ranges are those of the zoo's own
inputs and of seeded ones like them.  Convolutional networks are quantised throughout,
transformers' products alone, as ONNX Runtime's guide has it.  Per network:

    OUT_DIR/<name>-int8/model.onnx
    OUT_DIR/<name>-int8/test_data_set_0/{input_0.pb,output_0.pb}     ONNX Runtime's outputs
"""

import pathlib
import shutil
import sys
import tempfile

import numpy as np
import onnx
import onnxruntime as ort
from onnx import numpy_helper
from onnxruntime import quantization
from onnxruntime.quantization import shape_inference

PRODUCTS = ["MatMul", "Gemm", "Conv"]
# Which operators to quantise; None: all that the quantiser knows.
MODELS = {
    "resnet50": None,
    "mobilenetv2": None,
    "squeezenet": None,
    "shufflenetv2": None,
    "densenet121": None,
    "efficientnet-b0": None,
    "inception-v3": None,
    "unet": None,
    "yolov4": None,
    "yolox-nano": None,
    "efficientvit-b1": None,
    "segformer-b0": None,
    "candy": None,
    "dcgan": None,
    "bert-base": PRODUCTS,
    "minilm-l6": PRODUCTS,
    "vit-b16": PRODUCTS,
    "swin-t": PRODUCTS,
    "gpt2-prefill": PRODUCTS,
    "gpt2-decode": PRODUCTS,
    "t5-encoder": PRODUCTS,
    "t5-decoder": PRODUCTS,
    "dlrm": PRODUCTS,
    "mlp": PRODUCTS,
    "lstm-tagger": PRODUCTS,
}
SAMPLES = 3


def zoo_inputs(folder):
    """{name: array} of the folder's first data set."""
    data = folder / "test_data_set_0"
    tensors = [onnx.load_tensor(path) for path in sorted(data.glob("input_*.pb"))]
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in tensors}


def like(array, rng):
    """Another input of the same kind."""
    if array.dtype.kind == "f":
        return rng.normal(array.mean(), array.std(), array.shape).astype(array.dtype)
    return rng.permuted(array, axis=-1)


class Samples(quantization.CalibrationDataReader):
    def __init__(self, inputs):
        rng = np.random.default_rng(5)
        rest = [{name: like(array, rng) for name, array in inputs.items()}
                for _ in range(SAMPLES - 1)]
        self._next = iter([inputs, *rest])

    def get_next(self):
        return next(self._next, None)


def quantise(folder, out):
    name = folder.name
    inputs = zoo_inputs(folder)
    data = out / "test_data_set_0"
    data.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        prepared = pathlib.Path(scratch) / "model.onnx"
        shape_inference.quant_pre_process(str(folder / "model.onnx"), str(prepared),
                                          skip_symbolic_shape=True)
        quantization.quantize_static(
            str(prepared), str(out / "model.onnx"), Samples(inputs),
            quant_format=quantization.QuantFormat.QDQ, per_channel=True,
            op_types_to_quantize=MODELS[name], activation_type=quantization.QuantType.QUInt8,
            weight_type=quantization.QuantType.QInt8)
    for path in (folder / "test_data_set_0").glob("input_*.pb"):
        shutil.copyfile(path, data / path.name)
    session = ort.InferenceSession(str(out / "model.onnx"), providers=["CPUExecutionProvider"])
    for k, (value, array) in enumerate(zip(session.get_outputs(), session.run(None, inputs))):
        tensor = numpy_helper.from_array(array, value.name)
        (data / f"output_{k}.pb").write_bytes(tensor.SerializeToString())


def main(zoo, out_dir, names):
    for name in names or MODELS:
        if name not in MODELS:
            sys.exit(f"quantise: '{name}' is none of {', '.join(MODELS)}")
        quantise(pathlib.Path(zoo) / name, pathlib.Path(out_dir) / f"{name}-int8")
        print(f"quantise: {name}-int8", file=sys.stderr)


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__.strip())
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
