"""Makes the zoo's models whole: weights from seeds, inputs, and ONNX Runtime's outputs.

    build/venv/bin/python zoo/materialise.py OUT_DIR [NAME…]

Reads zoo/<name>/graph.onnx[.xz] (made by export.py) and writes

    OUT_DIR/<name>/model.onnx
    OUT_DIR/<name>/test_data_set_0/{input_K.pb,output_K.pb}

A model that is already there, made from the same graph by the same script, is left alone.
"""

import argparse
import hashlib
import json
import lzma
import pathlib
import shutil
import sys
import time

import numpy as np
import onnx
import onnxruntime
from onnx import numpy_helper

ZOO = pathlib.Path(__file__).resolve().parent


def graph_file(name):
    """zoo/<name>/graph.onnx, or graph.onnx.xz where it is large."""
    path = ZOO / name / "graph.onnx"
    return path if path.exists() else path.with_suffix(".onnx.xz")


def load_graph(name):
    content = graph_file(name).read_bytes()
    if graph_file(name).suffix == ".xz":
        content = lzma.decompress(content)
    return onnx.load_from_string(content)


def generator(seed):
    return np.random.Generator(np.random.PCG64(seed))


def make_weight(spec, shape):
    """float32 values for {"seed": n, "normal": [mean, std]} or {"seed": n, "uniform": [low, high]}."""
    random = generator(spec["seed"])
    if "normal" in spec:
        mean, std = spec["normal"]
        values = random.standard_normal(shape, dtype=np.float32)
        values *= np.float32(std)
        values += np.float32(mean)
    elif "uniform" in spec:
        low, high = spec["uniform"]
        values = random.random(shape, dtype=np.float32) * np.float32(high - low) + np.float32(low)
    else:
        raise ValueError(f"weight spec {spec} has no known distribution")
    return values


def make_input(spec, value_info):
    """One input. Kinds: normal; uniform low..high; tokens, integers below a vocabulary's size;
    mask, ones and then `padding` zeros; segments, `first` zeros and then ones."""
    shape = tuple(d.dim_value for d in value_info.type.tensor_type.shape.dim)
    dtype = onnx.helper.tensor_dtype_to_np_dtype(value_info.type.tensor_type.elem_type)
    random = generator(spec["seed"])
    kind = spec["kind"]
    if kind == "normal":
        return random.standard_normal(shape, dtype=np.float32).astype(dtype)
    if kind == "uniform":
        return random.uniform(spec["low"], spec["high"], shape).astype(dtype)
    if kind == "tokens":
        return random.integers(0, spec["below"], shape).astype(dtype)
    position = np.broadcast_to(np.arange(shape[-1]), shape)
    if kind == "mask":
        return (position < shape[-1] - spec["padding"]).astype(dtype)
    if kind == "segments":
        return (position >= spec["first"]).astype(dtype)
    raise ValueError(f"input '{value_info.name}': unknown kind {kind!r}")


def take_property(model, key):
    """Reads and removes one of export.py's JSON properties."""
    for index, entry in enumerate(model.metadata_props):
        if entry.key == key:
            value = json.loads(entry.value)
            del model.metadata_props[index]
            return value
    raise ValueError(f"graph has no metadata '{key}'; was it made by export.py?")


def fill_weights(model):
    specs = take_property(model, "heddle.weights")
    for tensor in model.graph.initializer:
        if tensor.name in specs:
            values = make_weight(specs[tensor.name], tuple(tensor.dims))
            tensor.raw_data = values.astype("<f4", copy=False).tobytes()


def reference_outputs(model_path, feeds):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(model_path), options,
                                           providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds)))


def check_sane(name, array):
    """The zoo is for testing numerics: refuses outputs that would hide mistakes."""
    if not np.isfinite(array).all():
        raise ValueError(f"output '{name}' is not finite")
    if array.size > 1 and np.std(array) < 1e-3 * np.abs(array).max():
        raise ValueError(f"output '{name}' is nearly constant")


def write_tensor(path, name, array):
    path.write_bytes(numpy_helper.from_array(np.ascontiguousarray(array), name).SerializeToString())


def materialise(name, folder):
    model = load_graph(name)
    input_specs = take_property(model, "heddle.inputs")
    fill_weights(model)
    data = folder / "test_data_set_0"
    data.mkdir(parents=True)
    onnx.save(model, folder / "model.onnx")
    feeds = {i.name: make_input(input_specs[i.name], i) for i in model.graph.input}
    for k, (key, value) in enumerate(feeds.items()):
        write_tensor(data / f"input_{k}.pb", key, value)
    outputs = reference_outputs(folder / "model.onnx", feeds)
    for k, output in enumerate(model.graph.output):
        check_sane(output.name, outputs[output.name])
        write_tensor(data / f"output_{k}.pb", output.name, outputs[output.name])
    return outputs


def fingerprint(name):
    digest = hashlib.sha256()
    for part in (graph_file(name), pathlib.Path(__file__)):
        digest.update(part.read_bytes())
    digest.update(f"{np.__version__} {onnxruntime.__version__}".encode())
    return digest.hexdigest()


def bring_up_to_date(name, folder):
    want = fingerprint(name)
    stamp = folder / ".stamp"
    if stamp.exists() and stamp.read_text() == want:
        return
    start = time.monotonic()
    shutil.rmtree(folder, ignore_errors=True)
    # Written beside and renamed, so that an interrupted run leaves no half model behind.
    part = folder.with_name(folder.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    outputs = materialise(name, part)
    (part / ".stamp").write_text(want)
    part.rename(folder)
    sizes = ", ".join(f"{key} {list(v.shape)} std {v.std():.3g}" for key, v in outputs.items())
    megabytes = (folder / "model.onnx").stat().st_size / 1e6
    print(f"zoo: {name}: {megabytes:.0f} MB in {time.monotonic() - start:.1f} s; {sizes}",
          file=sys.stderr)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("out_dir", type=pathlib.Path)
    parser.add_argument("names", nargs="*", metavar="NAME")
    arguments = parser.parse_args()
    known = sorted(path.parent.name for path in ZOO.glob("*/graph.onnx*"))
    for name in arguments.names:
        if name not in known:
            parser.error(f"no model {name!r} in the zoo, want one of {', '.join(known)}")
    for name in arguments.names or known:
        bring_up_to_date(name, arguments.out_dir / name)


if __name__ == "__main__":
    main()
