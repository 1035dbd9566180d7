"""IREE: ONNX importer, llvm-cpu for this machine, the task system with the threads it is given."""

import importlib.metadata
import pathlib
import tempfile

import iree.compiler
import iree.runtime
import numpy as np
import onnx
from iree.compiler.tools.import_onnx import __main__ as importer

import onnx_model

PRECISIONS = {"f32": "f32"}
# The default limit on a kernel's stack refuses LayerNormalization over 384 channels.
FLAGS = ["--iree-llvmcpu-target-cpu=host", "--iree-opt-level=O3",
         "--iree-llvmcpu-stack-allocation-limit=1048576"]


def version():
    return importlib.metadata.version("iree-base-compiler")


def compiled(model_path):
    path = pathlib.Path(onnx_model.cached(model_path, "iree", version(), FLAGS) + ".vmfb")
    if not path.exists():
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            model, text, program = (f"{folder}/model.{kind}" for kind in ("onnx", "mlir", "vmfb"))
            onnx.save(onnx_model.folded(model_path), model)
            importer.main(importer.parse_arguments([model, "-o", text]))
            iree.compiler.compile_file(text, output_file=program, input_type="onnx",
                                       target_backends=["llvm-cpu"], extra_args=FLAGS)
            pathlib.Path(program).rename(path)
    return path


def load(model_path, threads, _precision, inputs):
    iree.runtime.flags.parse_flags(f"--task_topology_group_count={threads}")
    config = iree.runtime.Config("local-task" if threads > 1 else "local-sync")
    module = iree.runtime.load_vm_module(
        iree.runtime.VmModule.mmap(config.vm_instance, str(compiled(model_path))), config)
    entry = onnx.load(model_path, load_external_data=False).graph.name or "main_graph"
    arguments = [iree.runtime.asdevicearray(config.device, np.ascontiguousarray(array))
                 for array in onnx_model.ordered(model_path, inputs)]
    return Session(module[entry], arguments, onnx_model.ports(model_path)[1])


class Session:
    def __init__(self, function, arguments, names):
        self._function, self._arguments, self._names = function, arguments, names

    def run(self):
        self._result = self._function(*self._arguments)

    def outputs(self):
        results = self._result if isinstance(self._result, (tuple, list)) else [self._result]
        return {name: value.to_host() for name, value in zip(self._names, results)}
