"""Writes small pictures of every format as seeds: pictures.py FOLDER."""

import pathlib
import sys

import numpy as np
import onnx
from onnx import numpy_helper


def plain(height, width):
    """PNM and BMP by hand."""
    pixels = np.arange(height * width * 3, dtype=np.uint8).tobytes()
    yield "p6", b"P6 %d %d 255\n" % (width, height) + pixels
    yield "p5", b"P5\n# grey\n%d %d 255\n" % (width, height) + pixels[:height * width]
    yield "p3", b"P3 %d %d 255\n" % (width, height) + b" ".join(b"%d" % v for v in pixels)
    yield "p1", b"P1 %d %d\n" % (width, height) + b"01" * (height * width // 2 + 1)
    rows = b"".join(bytes(3 * width) + bytes(-3 * width % 4) for _ in range(height))
    yield "bmp", (b"BM" + (54 + len(rows)).to_bytes(4, "little") + bytes(4)
                  + (54).to_bytes(4, "little") + (40).to_bytes(4, "little")
                  + width.to_bytes(4, "little") + height.to_bytes(4, "little")
                  + (1).to_bytes(2, "little") + (24).to_bytes(2, "little") + bytes(24) + rows)


def main(folder):
    cases = pathlib.Path(onnx.__file__).parent / "backend/test/data/node"
    count = 0
    for case in sorted(cases.glob("test_image_decoder_decode_*")):
        proto = onnx.TensorProto.FromString((case / "test_data_set_0/input_0.pb").read_bytes())
        (folder / case.name).write_bytes(numpy_helper.to_array(proto).tobytes())
        count += 1
    for name, data in plain(5, 7):
        (folder / name).write_bytes(data)
    if not count:
        sys.exit(f"no pictures in {cases}")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
