"""Heddle from Python: runs the `heddle` command, so that there is nothing to build.

    session = heddle.InferenceSession("model.onnx")
    outputs = session.run(None, {"x": array})

Each run starts a process; programs come from Heddle's cache after the first. An artefact of
`heddle compile`, also one for several sizes (`--dynamic`), is opened in the same way and compiles
nothing. `heddle.backend` is an `onnx.backend.base.Backend`. The command is found in $HEDDLE or on
the path.
"""

import json
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


def _command(*arguments):
    """What `heddle` prints."""
    done = subprocess.run([os.environ.get("HEDDLE", "heddle"), *arguments], capture_output=True,
                          text=True, check=False)
    if done.returncode != 0:
        raise HeddleError(done.returncode, done.stderr.strip())
    return done.stdout


def _is_artefact(path):
    with open(path, "rb") as file:
        return file.read(6) == b"HEDDLE"


class InferenceSession:
    """A model, compiled for the shapes of the inputs of each run, or an artefact."""

    def __init__(self, model):
        """`model`: a path (of an ONNX file or an artefact), serialised bytes, or a ModelProto."""
        self._folder = tempfile.TemporaryDirectory(prefix="heddle-")
        self._inputs = self._outputs = self._labels = {}
        if isinstance(model, (str, os.PathLike)):
            self._path = pathlib.Path(model)
            self._artefact = _is_artefact(self._path)
            if self._artefact:
                report = json.loads(_command("explain", self._path, "--json"))
                self.input_names = [port["name"] for port in report["inputs"]]
                self.output_names = [port["name"] for port in report["outputs"]]
                return
            model = onnx.load(self._path, load_external_data=False)
        else:
            self._artefact = False
            self._path = pathlib.Path(self._folder.name) / "model.onnx"
            model = onnx.load_from_string(model) if isinstance(model, bytes) else model
            onnx.save(model, self._path)
        constants = {t.name for t in model.graph.initializer}
        self._inputs = {i.name: i.type for i in model.graph.input if i.name not in constants}
        self._outputs = {o.name: o.type for o in model.graph.output}
        self._labels = {node.output[0]: [label for attribute in node.attribute
                                         for label in helper.get_attribute_value(attribute)]
                        for node in model.graph.node if node.op_type == "ZipMap"}
        self.input_names = list(self._inputs)
        self.output_names = list(self._outputs)

    def run(self, output_names, feeds):
        """Outputs, those named or all in the model's order: arrays, lists for sequences (of maps
        where the model zips them), None for an optional value that is absent. `feeds`: the same by
        name of the input."""
        if missing := [name for name in self.input_names if name not in feeds]:
            raise ValueError(f"no array for input '{missing[0]}'")
        with tempfile.TemporaryDirectory(dir=self._folder.name) as folder:
            folder = pathlib.Path(folder)
            arguments = ["run", self._path] + ([] if self._artefact else ["--as-given"])
            for k, (name, value) in enumerate(feeds.items()):
                file = folder / f"input_{k}.pb"
                file.write_bytes(self._to_proto(name, value).SerializeToString())
                arguments += ["--input", f"{name}={file}"]
            saved = folder / "outputs"
            saved.mkdir()
            _command(*arguments, "--save", saved)
            values = {name: self._read(name, saved / f"output_{k}")
                      for k, name in enumerate(self.output_names)}
        return [values[name] for name in output_names or self.output_names]

    def _to_proto(self, name, value):
        kind = self._inputs[name].WhichOneof("value") if name in self._inputs else "tensor_type"
        if kind == "optional_type":
            return numpy_helper.from_optional(value, name)
        if kind == "sequence_type":
            return numpy_helper.from_list([np.asarray(item) for item in value], name)
        return numpy_helper.from_array(np.asarray(value), name)

    def _read(self, name, file):
        if name in self._labels and file.with_suffix(".npy").exists():
            labels = [v.decode() if isinstance(v, bytes) else v for v in self._labels[name]]
            return [dict(zip(labels, row.tolist()))
                    for row in np.atleast_2d(np.load(file.with_suffix(".npy")))]
        if file.with_suffix(".npy").exists():
            return self._as_declared(name, np.load(file.with_suffix(".npy")))
        data = file.with_suffix(".pb").read_bytes()
        kind = self._outputs[name].WhichOneof("value") if name in self._outputs else "tensor_type"
        if kind == "sequence_type":
            return numpy_helper.to_list(onnx.SequenceProto.FromString(data))
        if kind == "optional_type":
            return numpy_helper.to_optional(onnx.OptionalProto.FromString(data))
        return numpy_helper.to_array(onnx.TensorProto.FromString(data))

    def _as_declared(self, name, array):
        """NumPy files know no types of 4 or fewer bits and no floats of 8: those are saved as
        bytes, integers by value and floats by their bits."""
        declared = self._outputs[name].tensor_type.elem_type if name in self._outputs else 0
        if not declared or array.dtype not in (np.int8, np.uint8):
            return array
        wanted = helper.tensor_dtype_to_np_dtype(declared)
        if wanted == array.dtype or wanted.itemsize != 1:
            return array
        return array.astype(wanted) if "int" in wanted.name else array.view(wanted)
