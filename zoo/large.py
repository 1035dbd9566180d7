"""Makes the large networks whole, which are compared on GPUs alone: as materialise.py does the zoo's.

    build/venv/bin/python zoo/large.py OUT_DIR [NAME…]

Reads zoo/large/<name>/graph.onnx[.xz], writes OUT_DIR/<name>/.
"""

import argparse
import pathlib

import materialise


def names():
    return sorted(path.parent.name for path in (materialise.ZOO / "large").glob("*/graph.onnx*"))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("out_dir", type=pathlib.Path)
    parser.add_argument("names", nargs="*", metavar="NAME")
    arguments = parser.parse_args()
    known = names()
    for name in arguments.names:
        if name not in known:
            parser.error(f"no large network {name!r}, want one of {', '.join(known)}")
    for name in arguments.names or known:
        materialise.bring_up_to_date(f"large/{name}", arguments.out_dir / name)


if __name__ == "__main__":
    main()
