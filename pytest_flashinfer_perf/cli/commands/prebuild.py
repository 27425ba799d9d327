"""`flashinfer-perf prebuild`: compile what cases need, before they are measured or for another machine."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from pytest_flashinfer_perf.cli import processes
from pytest_flashinfer_perf.prebuild import start

EXAMPLE = """examples:
  flashinfer-perf prebuild -- tests/attention -k 'decode and fa3'
  FLASHINFER_CUDA_ARCH_LIST=9.0a flashinfer-perf prebuild --output kernels -- my_benchmarks.txt
"""
DESCRIPTION = f"""Compile FlashInfer's kernel modules that these cases need, as many files at a time as
MAX_JOBS says, for the GPUs here or those of {start.ARCHITECTURES}. Needs CUDA's
compiler and no GPU. Exits with 0 when all are there, with 1 when one does not compile."""


def main(arguments: Sequence[str]) -> int:
    own, for_pytest = processes.split(arguments)
    said = _parser().parse_args(own)
    return start.prebuild(for_pytest, output=said.output)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "flashinfer-perf prebuild",
        usage="flashinfer-perf prebuild [--output DIR] -- PYTEST_ARGS",
        description=DESCRIPTION,
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--output", metavar="DIR", type=Path, help="copy them to this folder, which another machine has on PYTHONPATH"
    )
    return parser
