"""Operators that jaxonnxruntime lacks and the zoo needs, for peer_jax.py."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxonnxruntime.core import handler


def register(name, versions, function):
    """`function(attributes, inputs)` gives the function of the inputs (which are known when it is
    asked, and traced when it runs); the handler class is the shape that the converter wants."""
    methods = {f"version_{v}": classmethod(lambda _cls, node, inputs: function(node.attrs, inputs))
               for v in versions}
    CLASSES.append(handler.register_op(name)(type(name, (handler.Handler,), methods)))


CLASSES = []  # the converter looks among the living subclasses of Handler


def normalise(x, axes, epsilon):
    mean = jnp.mean(x, axes, keepdims=True)
    variance = jnp.mean(jnp.square(x - mean), axes, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(variance + epsilon)


def layer_normalization(attributes, _inputs):
    def run(x, scale, bias=0):
        axes = tuple(range(attributes.get("axis", -1) % x.ndim, x.ndim))
        return normalise(x, axes, attributes.get("epsilon", 1e-5)) * scale + bias
    return run


def instance_normalization(attributes, _inputs):
    def run(x, scale, bias):
        per_channel = (-1,) + (1,) * (x.ndim - 2)
        y = normalise(x, tuple(range(2, x.ndim)), attributes.get("epsilon", 1e-5))
        return y * scale.reshape(per_channel) + bias.reshape(per_channel)
    return run


def reduce_l2(attributes, _inputs):
    axes, keep = attributes["axes"], bool(attributes.get("keepdims", 1))
    return lambda x: jnp.sqrt(jnp.sum(x * x, tuple(axes), keepdims=keep))


def resize(attributes, inputs):
    """Enlarging: linear with half-pixel centres, nearest by whole factors; else refused."""
    kind = (attributes.get("mode", b"nearest"),
            attributes.get("coordinate_transformation_mode", b"half_pixel"))
    mode, centres = (k.decode() if isinstance(k, bytes) else k for k in kind)
    if len(inputs) > 3 and inputs[3] is not None:
        shape = tuple(np.asarray(inputs[3]).tolist())
    else:
        shape = tuple(int(n * s) for n, s in zip(inputs[0].shape, np.asarray(inputs[2]).tolist()))

    def run(x, *_):
        if mode == "linear" and centres in ("half_pixel", "pytorch_half_pixel"):
            return jax.image.resize(x, shape, "linear", antialias=False)
        if mode == "nearest" and all(big % small == 0 for big, small in zip(shape, x.shape)):
            for axis, (big, small) in enumerate(zip(shape, x.shape)):
                x = jnp.repeat(x, big // small, axis)
            return x
        raise NotImplementedError(f"Resize: {mode}, {centres}, {x.shape} to {shape}")
    return run


def register_all():
    register("LayerNormalization", [17], layer_normalization)
    register("InstanceNormalization", [1, 6], instance_normalization)
    register("ReduceL2", [1, 11, 13], reduce_l2)
    register("Resize", [11, 13, 18, 19], resize)
