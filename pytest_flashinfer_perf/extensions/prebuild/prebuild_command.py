"""`flashinfer-perf prebuild`: compile the modules that cases need, before a run or for another machine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pytest_flashinfer_perf.api import commands, processes
from pytest_flashinfer_perf.extensions.prebuild import loop

EXAMPLE = """examples:
  flashinfer-perf prebuild -- tests/attention -k 'decode and fa3'
  FLASHINFER_CUDA_ARCH_LIST=9.0a flashinfer-perf prebuild --output kernels -- my_benchmarks.txt
"""
DESCRIPTION = f"""Compile the FlashInfer modules that these cases need. They are compiled for the GPUs of
this machine, or for those that {loop.ARCHITECTURES} names; MAX_JOBS limits
the number of files compiled at a time. Needs CUDA's compiler and no GPU.
Exits with 0 if all modules are compiled, with 1 if one fails to compile."""


def main(arguments: Sequence[str]) -> int:
    own, for_pytest = processes.split(arguments)
    parser = commands.parser_of("prebuild", DESCRIPTION, EXAMPLE, usage="[--output DIR] -- PYTEST_ARGS")
    output = "Copy the modules to this folder. Another machine finds them with the folder in PYTHONPATH."
    parser.add_argument("--output", metavar="DIR", type=Path, help=output)
    args = parser.parse_args(own)
    return loop.prebuild(for_pytest, output=args.output)
