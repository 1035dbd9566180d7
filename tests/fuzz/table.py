"""The one table of what random graphs are made of: every operator of `heddle ops` has a maker or a
reason why it has none (operators_test.py compares it with the command)."""

import make_classical
import make_elementwise
import make_networks
import make_rest
import make_shapes

MAKERS = {**make_elementwise.MAKERS, **make_shapes.MAKERS, **make_networks.MAKERS,
          **make_rest.MAKERS, **make_classical.MAKERS}

DRAWS = "it draws, so no two implementations agree"
NONE = "onnx's reference evaluator does not have it"
GONE = "gone since ONNX 1.3, where it was experimental: " + NONE
LEFT_OUT = {
    **dict.fromkeys(["Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike",
                     "RandomUniform", "RandomUniformLike"], DRAWS),
    **dict.fromkeys(["GlobalLpPool", "MaxRoiPool", "Scatter", "SimplifiedLayerNormalization",
                     "ai.onnx.ml::CategoryMapper", "ai.onnx.preview.training::Gradient"], NONE),
    **dict.fromkeys(["Affine", "ConstantFill", "Crop", "DynamicSlice", "GivenTensorFill",
                     "ImageScaler", "ParametricSoftplus", "Scale", "ScaledTanh"], GONE),
    "ImageDecoder": "its input is a file; tests/ops/images_test.cpp and the image fuzzer test it",
    "OptionalGetElement": "the reference gives the element in a list",
    "Upsample": "gone since opset 10; the reference has no opset before 13 for most others",
    "ai.onnx.ml::SVMClassifier": "the reference's scores differ from the standard's for ties",
    "ai.onnx.ml::TreeEnsemble": "a chain of eight index attributes; the two older forms are made",
    "ai.onnx.ml::ZipMap": "it makes a map, and values are tensors, sequences and optional values",
    "ai.onnx.preview::FlexAttention": "its bodies are graphs over scores; the node tests have them",
}


def reason(operator):
    """Why an operator has no maker; None if it has one or nobody knows of it."""
    if operator.startswith("com.microsoft"):
        return "onnx's reference evaluator has no operators of com.microsoft"
    return LEFT_OUT.get(operator)
