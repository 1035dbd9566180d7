"""Heddle from Python: runs the `heddle` command, so that there is nothing to build.

    session = heddle.InferenceSession("model.onnx")
    outputs = session.run(None, {"x": array})

Each run starts a process; programs come from Heddle's cache after the first. `heddle.backend` is an
`onnx.backend.base.Backend`. The command is found in $HEDDLE or on the path.
"""

import os
import pathlib
import subprocess
import tempfile

import numpy as np
import onnx
from onnx import helper, numpy_helper


class HeddleError(RuntimeError):
    """The command failed; `code` is its exit code (3: the model uses something unsupported)."""

    def __init__(self, code, message):
        super().__init__(message)
        self.code = code


class InferenceSession:
    """A model, compiled for the shapes of the inputs of each run."""

    def __init__(self, model):
        """`model`: a path, serialised bytes, or a ModelProto."""
        self._folder = tempfile.TemporaryDirectory(prefix="heddle-")
        if isinstance(model, (str, os.PathLike)):
            self._path = pathlib.Path(model)
            model = onnx.load(self._path, load_external_data=False)
        else:
            self._path = pathlib.Path(self._folder.name) / "model.onnx"
            model = onnx.load_from_string(model) if isinstance(model, bytes) else model
            onnx.save(model, self._path)
        constants = {t.name for t in model.graph.initializer}
        self.input_names = [i.name for i in model.graph.input if i.name not in constants]
        self.output_names = [o.name for o in model.graph.output]
        self._types = {o.name: o.type.tensor_type.elem_type for o in model.graph.output}

    def run(self, output_names, feeds):
        """Outputs as arrays, those named or all in the model's order. `feeds`: arrays by name."""
        if missing := [name for name in self.input_names if name not in feeds]:
            raise ValueError(f"no array for input '{missing[0]}'")
        with tempfile.TemporaryDirectory(dir=self._folder.name) as folder:
            folder = pathlib.Path(folder)
            command = [os.environ.get("HEDDLE", "heddle"), "run", self._path, "--as-given"]
            for k, (name, value) in enumerate(feeds.items()):
                file = folder / f"input_{k}.pb"
                tensor = numpy_helper.from_array(np.asarray(value), name)
                file.write_bytes(tensor.SerializeToString())
                command += ["--input", f"{name}={file}"]
            saved = folder / "outputs"
            saved.mkdir()
            done = subprocess.run([*command, "--save", saved], capture_output=True, text=True,
                                  check=False)
            if done.returncode != 0:
                raise HeddleError(done.returncode, done.stderr.strip())
            arrays = dict(zip(self.output_names, self._read(saved)))
        return [arrays[name] for name in output_names or self.output_names]

    def _read(self, folder):
        for k, name in enumerate(self.output_names):
            file = folder / f"output_{k}.npy"
            if file.exists():
                yield self._as_declared(name, np.load(file))
            elif not file.with_suffix(".pb").exists():
                raise HeddleError(3, f"output '{name}' is no tensor")
            else:
                yield numpy_helper.to_array(onnx.load_tensor(folder / f"output_{k}.pb"))

    def _as_declared(self, name, array):
        """NumPy files know no types of 4 or fewer bits and no floats of 8: those are saved as
        bytes, integers by value and floats by their bits."""
        declared = self._types.get(name, 0)
        if not declared or array.dtype not in (np.int8, np.uint8):
            return array
        wanted = helper.tensor_dtype_to_np_dtype(declared)
        if wanted == array.dtype or wanted.itemsize != 1:
            return array
        return array.astype(wanted) if "int" in wanted.name else array.view(wanted)
