"""`flashinfer-perf model`: the step of a model as a budget of kernels."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from pytest_flashinfer_perf.apis import all_apis
from pytest_flashinfer_perf.config.usage import positive
from pytest_flashinfer_perf.files import write_whole
from pytest_flashinfer_perf.models import budget, budget_table, step
from pytest_flashinfer_perf.report import runs
from pytest_flashinfer_perf.routines import model_step
from pytest_flashinfer_perf.routines.model_step import Plan
from pytest_flashinfer_perf.running import processes
from pytest_flashinfer_perf.runs.run_file import Run
from pytest_flashinfer_perf.runs.step import ModelStep
from pytest_flashinfer_perf.spec import flags
from pytest_flashinfer_perf.spec.presets import Spread

COMPLETE, INCOMPLETE = 0, 2
EXAMPLE = """examples:
  flashinfer-perf model llama-3.1-70b --tp 8 --batch 64 --context 8192 --phase decode
  flashinfer-perf model ./my-model/config.json --plan
  flashinfer-perf model deepseek-v3 --tp 8 --run run.json --base before.json --markdown
"""


def main(arguments: Sequence[str]) -> int:
    own, for_pytest = processes.split(arguments)
    args = _parser().parse_args(own)
    plan = model_step.plan(args.config, step.read(args, Spread(args.tp, args.dp, args.ep)), all_apis())
    if args.plan:
        _write(args.output, "\n".join(model_step.listed(plan)))
        return COMPLETE
    run = _read(args.run) if args.run else _measured(args, for_pytest)
    known = _recorded(plan, run)
    found = budget.of_run(known, run)
    show = budget_table.markdown if args.markdown else budget_table.lines
    _write(args.output, "\n".join(show(known, found, budget.of_run(known, _read(args.base)) if args.base else None)))
    return INCOMPLETE if found.unmeasured else COMPLETE


def _recorded(plan: Plan, run: Run) -> ModelStep:
    """As the run recorded it, since here another FlashInfer may be installed, or none."""
    return run.step if run.step and run.step.title == plan.title else plan.recorded


def _read(path: Path) -> Run:
    [run] = runs.read([path])
    return run


def _measured(args: argparse.Namespace, for_pytest: Sequence[str]) -> Run:
    """By the suite, in a process of its own, whose log stays where it fails."""
    folder = Path(tempfile.mkdtemp(prefix="flashinfer-perf-model-"))
    stem = folder / "step"
    processes.measured(_suite(), [*_options(args), *for_pytest], stem)
    run = _read(stem.with_suffix(".json"))
    shutil.rmtree(folder)
    return run


def _suite() -> processes.Environment:
    start = "import sys; from pytest_flashinfer_perf import cli; sys.exit(cli.main(sys.argv[1:]))"
    return processes.Environment("this one", (sys.executable, "-c", start, "bench"))


def _options(args: argparse.Namespace) -> list[str]:
    sizes = ("phase", "batch", "context", "page_size", "kv_dtype")
    words = [word for name in sizes for word in (f"--{name.replace('_', '-')}", str(getattr(args, name)))]
    spread = [f"--perf-{way}={getattr(args, way)}" for way in Spread._fields]
    mixed = ["--mixed"] if args.mixed else []
    return [f"--perf-model={args.config}", *spread, f"--perf-step={flags.join([*words, *mixed])}"]


def _write(output: Path | None, text: str) -> None:
    if output is None:
        sys.stdout.write(f"{text}\n")
    else:
        write_whole(output, f"{text}\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "flashinfer-perf model",
        usage="flashinfer-perf model CONFIG [options] [-- PYTEST_ARGS]",
        description="Show the GPU time of one step of a model on one GPU, kernel by kernel, with what is not covered. "
        "Measures the kernels, unless --run names a file with their times. Exits with 2 if a kernel that the suite can "
        "measure has no time.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("config", metavar="CONFIG", help="A config.json, its folder, or the name of a shipped model.")
    ways = {"tp": "Tensor-parallel", "dp": "Data-parallel", "ep": "Expert-parallel"}
    for way, meaning in ways.items():
        parser.add_argument(f"--{way}", type=positive, default=1, metavar="N", help=f"{meaning} size. Default: 1.")
    step.add_options(parser)
    parser.add_argument("--plan", action="store_true", help="Show the kernels and their shapes, and measure nothing.")
    parser.add_argument("--run", type=Path, metavar="RUN.json", help="Take the times from this run.")
    parser.add_argument(
        "--base", type=Path, metavar="RUN.json", help="Compare the sum with the one of this earlier run."
    )
    parser.add_argument("--markdown", action="store_true", help="Write Markdown, for a comment on a pull request.")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="File to write. Default: the terminal.")
    return parser
