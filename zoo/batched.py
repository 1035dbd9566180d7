"""Vision models of the zoo with another batch.

    python zoo/batched.py ZOO_DIR OUT_DIR BATCH [MODEL ...]

    OUT_DIR/<name>-b<BATCH>/model.onnx
    OUT_DIR/<name>-b<BATCH>/test_data_set_0/{input_0.pb,output_K.pb}    ONNX Runtime's, image by image

ZOO_DIR may also be what quantise.py has made, whose names end in "-int8".

Exporters leave the batch in constants that make the shapes of Reshape, Expand and Resize, and in what
is concatenated to each image; those whose result begins with it are made anew.
A model whose results are then not those of each image alone is an error; of integers, whose rounding
may depend on the batch, those of one image in eight may be others'.
"""

import pathlib
import sys

import numpy as np
import onnx
import onnxruntime as ort
from onnx import numpy_helper

MODELS = ["resnet50", "mobilenetv2", "segformer-b0", "candy", "squeezenet", "shufflenetv2",
          "efficientnet-b0", "densenet121", "dcgan", "unet", "inception-v3", "efficientvit-b1",
          "yolox-nano", "yolov4", "vit-b16", "swin-t"]
# Which input of what makes a shape says its first extent.
LEADS = {"Concat": 0, "Where": 2}
# Which input of an operator is a shape.
SHAPES = {"Reshape": 1, "Expand": 1, "Resize": 3}


def with_batch(model, batch):
    graph = model.graph
    constants = {c.name: numpy_helper.to_array(c) for c in graph.initializer}
    constants |= {n.output[0]: numpy_helper.to_array(n.attribute[0].t) for n in graph.node
                  if n.op_type == "Constant" and n.attribute[0].name == "value"}
    makers = {name: node for node in graph.node for name in node.output}

    def enlarge(node, index):
        """Multiplies the first extent of the shape that `node` reads, where a constant says it."""
        shape, maker = constants.get(node.input[index]), makers.get(node.input[index])
        if shape is not None and shape.ndim and shape.size and shape[0] >= 1:
            name = f"batched/{len(graph.initializer)}"
            shape = np.concatenate([[shape[0] * batch], shape[1:]]).astype(np.int64)
            graph.initializer.append(numpy_helper.from_array(shape, name))
            node.input[index] = name
        elif maker is not None and maker.op_type in LEADS:
            enlarge(maker, LEADS[maker.op_type])

    for node in list(graph.node):
        if len(node.input) > SHAPES.get(node.op_type, len(node.input)):
            enlarge(node, SHAPES[node.op_type])
        elif node.op_type == "Concat" and node.attribute[0].i != 0:
            for k, name in enumerate(node.input):
                if name in constants and constants[name].ndim > 2 and len(constants[name]) == 1:
                    node.input[k] = f"batched/{len(graph.initializer)}"
                    graph.initializer.append(numpy_helper.from_array(
                        np.repeat(constants[name], batch, axis=0), node.input[k]))
    graph.input[0].type.tensor_type.shape.dim[0].dim_value = batch
    for value in graph.output:
        del value.type.tensor_type.shape.dim[:]
        value.type.tensor_type.ClearField("shape")
    del graph.value_info[:]


def mixed(together, alone, integers):
    """Whether results of a batch depend on other images."""
    if not integers or len(alone) == 1:
        return np.abs(together - alone).max() > 1e-3 * max(1, np.abs(alone).max())
    apart = np.array([[np.abs(one - other).mean() for other in alone] for one in together])
    return (np.diag(apart) > apart.mean(axis=1) / 4).mean() > 1 / 8


def batched(folder, out, batch):
    model = onnx.load(str(folder / "model.onnx"))
    name = model.graph.input[0].name
    first = numpy_helper.to_array(onnx.load_tensor(folder / "test_data_set_0/input_0.pb"))
    rng = np.random.default_rng(8)
    images = np.concatenate(
        [first] + [rng.permuted(first, axis=-1) for _ in range(batch - 1)]).astype(first.dtype)
    alone = ort.InferenceSession(str(folder / "model.onnx"), providers=["CPUExecutionProvider"])
    each = [alone.run(None, {name: images[k:k + 1]}) for k in range(batch)]
    want = [np.concatenate(values) for values in zip(*each)]
    with_batch(model, batch)
    data = out / "test_data_set_0"
    data.mkdir(parents=True, exist_ok=True)
    for value, array in zip(model.graph.output, want):
        for extent in array.shape:
            value.type.tensor_type.shape.dim.add().dim_value = extent
    onnx.save(model, str(out / "model.onnx"))
    together = ort.InferenceSession(str(out / "model.onnx"), providers=["CPUExecutionProvider"])
    for k, (value, array) in enumerate(zip(together.get_outputs(), together.run(None, {name: images}))):
        if array.shape != want[k].shape or mixed(array, want[k], folder.name.endswith("-int8")):
            raise SystemExit(f"batched: {folder.name}: output '{value.name}' mixes images")
        (data / f"output_{k}.pb").write_bytes(
            numpy_helper.from_array(want[k], value.name).SerializeToString())
    (data / "input_0.pb").write_bytes(numpy_helper.from_array(images, name).SerializeToString())


def main(zoo, out_dir, batch, names):
    there = [f.name for f in sorted(pathlib.Path(zoo).iterdir()) if f.name.removesuffix("-int8") in MODELS]
    if not there:
        raise SystemExit(f"batched: {zoo}: none of {', '.join(MODELS)}")
    for name in names or there:
        out = pathlib.Path(out_dir) / f"{name}-b{batch}"
        batched(pathlib.Path(zoo) / name, out, int(batch))
        print(f"batched: {out.name}", file=sys.stderr)


if __name__ == "__main__":
    if len(sys.argv) < 4:
        sys.exit(__doc__.strip())
    main(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:])
