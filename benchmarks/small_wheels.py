"""FlashInfer's wheels without what FA2's kernels are not compiled from: python benchmarks/small_wheels.py FROM TO

For a machine without a network, to which four whole ones are too much to carry: 181 MB become 58. Left out are the
sources of all other kernels, the copies of CUTLASS and spdlog, and what several hosts need. The headers of CCCL stay:
CUDA's own may be too old for the release.
"""

import argparse
import zipfile
from pathlib import Path

DATA, CSRC = "flashinfer/data/", "flashinfer/data/csrc/"
INCLUDED = tuple(
    f"{DATA}{folder}/" for folder in ("include", "cccl/libcudacxx/include", "cccl/cub/cub", "cccl/thrust/thrust")
)
PYTHON_ALONE = "flashinfer/experimental/"
LEFT_OUT = "flashinfer/moe_ep/"
LONGEST_SOURCE = 100_000


def is_kept(entry):
    name = entry.filename
    if name.startswith(CSRC):
        return "/" not in name.removeprefix(CSRC) and entry.file_size < LONGEST_SOURCE
    if name.startswith(PYTHON_ALONE):
        return name.endswith(".py")
    return name.startswith(INCLUDED) or not name.startswith((DATA, LEFT_OUT))


def small(source, target):
    """The same wheel with fewer files; its list of files has those that are there."""
    with zipfile.ZipFile(source) as whole, zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as made:
        kept = {entry.filename: entry for entry in whole.infolist() if is_kept(entry)}
        for name, entry in kept.items():
            made.writestr(entry, _record(whole.read(name), kept) if name.endswith("/RECORD") else whole.read(name))


def _record(text, kept):
    lines = text.decode().splitlines(keepends=True)
    return "".join(line for line in lines if line.partition(",")[0].strip('"') in kept)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    options = parser.parse_args()
    options.target.mkdir(parents=True, exist_ok=True)
    for wheel in sorted(options.source.glob("flashinfer_python-*.whl")):
        target = options.target / wheel.name
        small(wheel, target)
        print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} -> {target.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
