"""XLA through JAX, on the function that jaxonnxruntime makes of the model."""

import sys

import jax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_enable_x64", True)  # ONNX models hold int64
jax.config.update("jax_compilation_cache_dir", f"{sys.prefix}/compiled/jax")

import jax.numpy as jnp
import numpy as np
from jaxonnxruntime import call_onnx, config

import jax_ops
import onnx_model

jax_ops.register_all()
# Shapes that are computed from shapes are known when the model is traced.
config.update("jaxort_only_allow_initializers_as_static_args", False)
PRECISIONS = {"f32": "f32"}

# The converter still uses names of arguments that JAX has dropped.
new_clip = jnp.clip
jnp.clip = lambda x, a_min=None, a_max=None, **more: new_clip(x, a_min, a_max, **more)


def version():
    return jax.__version__


def load(model_path, _threads, _precision, inputs):
    arrays = dict(zip(onnx_model.ports(model_path)[0], onnx_model.ordered(model_path, inputs)))
    function, parameters = call_onnx.call_onnx_model(onnx_model.folded(model_path), arrays)
    compiled = jax.jit(function).lower(parameters, arrays).compile()
    return Session(compiled, jax.device_put(parameters), jax.device_put(arrays),
                   onnx_model.ports(model_path)[1])


class Session:
    def __init__(self, compiled, parameters, inputs, names):
        self._compiled, self._parameters, self._inputs = compiled, parameters, inputs
        self._names = names

    def run(self):
        self._results = jax.block_until_ready(self._compiled(self._parameters, self._inputs))

    def outputs(self):
        return {name: np.asarray(value) for name, value in zip(self._names, self._results)}
