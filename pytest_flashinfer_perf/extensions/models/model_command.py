"""`flashinfer-perf model`: the step of a model as a budget of kernels."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from pytest_flashinfer_perf.api import Run, commands, file_io, formatting, printing, processes, run_file
from pytest_flashinfer_perf.extensions.apis.known import all_apis
from pytest_flashinfer_perf.extensions.models import budget, deployment
from pytest_flashinfer_perf.extensions.models import plan as plans
from pytest_flashinfer_perf.extensions.models.step import StepPlan, plan_of
from pytest_flashinfer_perf.extensions.reports import markdown, story
from pytest_flashinfer_perf.routines import all_routines

COMPLETE, INCOMPLETE = 0, 2
EXAMPLE = """examples:
  flashinfer-perf model llama-3.1-70b --tp 8 --batch 64 --context 8192 --phase decode
  flashinfer-perf model ./my-model/config.json --plan
  flashinfer-perf model deepseek-v3 --tp 8 --run run.json --base before.json --markdown
"""


def main(arguments: Sequence[str]) -> int:
    own, for_pytest = processes.split(arguments)
    args = _parser().parse_args(own)
    config = Path(args.config)
    file_io.verify_outputs(
        {"--output": args.output}, filter(None, (config, config / "config.json", args.run, args.base))
    )
    plan = plans.of(args.config, deployment.read(args))
    if args.plan:
        commands.write(args.output, printing.safe_lines("\n".join(plans.listed(plan))) + "\n")
        return COMPLETE
    run = _read(args.run) if args.run else _measured(plan, for_pytest)
    found = budget.of_run(_recorded(plan, run), run, _read(args.base) if args.base else None)
    lines = markdown.opened(budget.as_table(found)) if args.markdown else budget.lines(found)
    commands.write(args.output, printing.safe_lines("\n".join(lines)) + "\n")
    return INCOMPLETE if found.unmeasured else COMPLETE


def _recorded(plan: StepPlan, run: Run) -> StepPlan:
    """As the run recorded it; else by the FlashInfer that is installed here, which may be another one, or none."""
    known = plan_of(run)
    if known is not None and plans.is_of(known, plan):
        return known
    return plans.completed(plan, {**all_routines(), **all_apis()})


def _read(path: Path) -> Run:
    [run] = story.read([path])
    return run


def _measured(plan: StepPlan, for_pytest: Sequence[str]) -> Run:
    """By the suite, in a process of its own, whose log stays where it fails, as the error names it."""
    folder, is_named = Path(tempfile.mkdtemp(prefix="flashinfer-perf-model-")), False
    printing.say(f"{plan.title}: {formatting.counted(len(plan.kernels) - len(plan.gaps), 'kernel')} to measure")
    words = [f"--perf-plan={folder / 'plan.json'}", *for_pytest]
    start = "import sys; from pytest_flashinfer_perf import cli; sys.exit(cli.main(sys.argv[1:]))"
    suite = processes.Environment("this one", (sys.executable, "-c", start, "bench"), shows=True)
    try:
        plans.write(folder / "plan.json", plan)
        return processes.measured(suite, words, folder / "step").run
    except run_file.RunError:
        is_named = True
        raise
    finally:
        if not is_named:
            shutil.rmtree(folder)


def _parser() -> argparse.ArgumentParser:
    parser = commands.parser_of(
        "model",
        "Show the GPU time of one step of a model on one GPU, kernel by kernel, with what is not covered. "
        "Measures the kernels, unless --run names a file with their times. Exits with 2 if a kernel that the suite can "
        "measure has no time.",
        EXAMPLE,
        usage="CONFIG [options] [-- PYTEST_ARGS]",
    )
    parser.add_argument("config", metavar="CONFIG", help="A config.json, its folder, or the name of a shipped model.")
    deployment.add_options(parser)
    parser.add_argument("--plan", action="store_true", help="Show the kernels and their shapes, and measure nothing.")
    parser.add_argument("--run", type=Path, metavar="RUN.json", help="Take the times from this run.")
    base = "Compare the sum with the one of this earlier run."
    parser.add_argument("--base", type=Path, metavar="RUN.json", help=base)
    parser.add_argument("--markdown", action="store_true", help="Write Markdown, for a comment on a pull request.")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="File to write. Default: the terminal.")
    return parser
