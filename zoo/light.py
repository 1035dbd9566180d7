"""Lays the light networks of the onnx package out as model folders.

    python zoo/light.py OUT_DIR

The onnx package (up to 1.22) ships nine networks whose weights are `ConstantOfShape`, each with its
expected output, under backend/test/data/light.  Its own backend runner makes the input: a ramp
0..1 over the elements (`Runner.generate_dummy_data` with random=False); the same ramp is written
here, so the shipped outputs are the right answers.  Per network:

    OUT_DIR/<name>/model.onnx
    OUT_DIR/<name>/test_data_set_0/{input_0.pb,output_0.pb}
    OUT_DIR/<name>/tolerance.json      {"rtol": …, "atol": …}, as the package's data.json says
"""

import json
import pathlib
import shutil
import sys

import numpy as np
import onnx
import onnx.backend.test
from onnx import numpy_helper


def ramp(value_info):
    """The backend runner's input for a float tensor: arange(n) / n, rounded to float32."""
    shape = tuple(d.dim_value or 1 for d in value_info.type.tensor_type.shape.dim)
    count = int(np.prod(shape))
    return (np.arange(count).reshape(shape) / count).astype(np.float32)


def lay_out(model_path, folder, tolerance):
    model = onnx.load(model_path)
    constants = {tensor.name for tensor in model.graph.initializer}
    inputs = [i for i in model.graph.input if i.name not in constants]
    data = folder / "test_data_set_0"
    data.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(model_path, folder / "model.onnx")
    for k, value_info in enumerate(inputs):
        tensor = numpy_helper.from_array(ramp(value_info), value_info.name)
        (data / f"input_{k}.pb").write_bytes(tensor.SerializeToString())
    for k in range(len(model.graph.output)):
        shutil.copyfile(model_path.with_name(f"{model_path.stem}_output_{k}.pb"),
                        data / f"output_{k}.pb")
    (folder / "tolerance.json").write_text(json.dumps(tolerance) + "\n")


def main(out_dir):
    data = pathlib.Path(onnx.backend.test.__file__).parent / "data"
    models = sorted((data / "light").glob("light_*.onnx"))
    if not models:
        sys.exit(f"onnx {onnx.__version__} ships no light networks in {data / 'light'}")
    for path in models:
        name = path.stem.removeprefix("light_")
        case = json.loads((data / "real" / f"test_{name}" / "data.json").read_text())
        lay_out(path, pathlib.Path(out_dir) / name,
                {"rtol": case.get("rtol", 1e-3), "atol": case.get("atol", 1e-7)})
    print(f"light: {len(models)} networks in {out_dir}", file=sys.stderr)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__.strip())
    main(sys.argv[1])
