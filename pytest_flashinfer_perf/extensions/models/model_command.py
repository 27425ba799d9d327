"""`flashinfer-perf model`: the step of a model as a budget of kernels."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from pytest_flashinfer_perf.api import Run, commands, formatting, printing, processes, run_file
from pytest_flashinfer_perf.extensions.compare import sides
from pytest_flashinfer_perf.extensions.models import budget, deployment, shipped
from pytest_flashinfer_perf.extensions.models import plan as plans
from pytest_flashinfer_perf.extensions.models.deployment import Step
from pytest_flashinfer_perf.extensions.models.step import StepPlan, plan_of

COMPLETE, INCOMPLETE = 0, 2
EXAMPLE = """examples:
  flashinfer-perf model llama-3.1-70b --tp 8 --batch 64 --context 8192 --phase decode
  flashinfer-perf model ./my-model/config.json --plan
"""


def main(arguments: Sequence[str]) -> int:
    own, for_pytest = processes.split(arguments)
    args = _parser().parse_args(own)
    step = deployment.read(args)
    plan = plans.of(args.config, step)
    if args.plan:
        printing.show(plans.listed(plan))
        return COMPLETE
    run = _measured(args.config, step, plan, for_pytest)
    step_budget = budget.of_run(plan_of(run) or plan, run)
    printing.show(budget.lines(step_budget))
    return INCOMPLETE if step_budget.unmeasured else COMPLETE


def _measured(config: str, step: Step, plan: StepPlan, for_pytest: Sequence[str]) -> Run:
    """Measure the plan by the suite in a process of its own; an error names its log, which stays."""
    folder, is_named = Path(tempfile.mkdtemp(prefix="flashinfer-perf-model-")), False
    printing.say(f"{plan.title}: {formatting.counted(len(plan.kernels) - len(plan.gaps), 'kernel')} to measure")
    model = os.path.abspath(config) if shipped.is_path(config) else config  # noqa: PTH100 - a name stays one
    words = [f"--perf-model={model}", f"--perf-step={step.flags}", *for_pytest]
    start = "import sys; from pytest_flashinfer_perf import cli; sys.exit(cli.main(sys.argv[1:]))"
    suite = processes.Environment("this one", (sys.executable, "-c", start, "bench"))
    try:
        return sides.measured(suite, words, folder / "step").run
    except run_file.RunError:
        is_named = True
        raise
    finally:
        if not is_named:
            shutil.rmtree(folder)


def _parser() -> argparse.ArgumentParser:
    parser = commands.parser_of(
        "model",
        "Measure the kernels of one step of a model on one GPU, and show its GPU time, kernel by kernel, with what is "
        "not covered. Exits with 2 if a kernel that the suite can measure has no time.",
        EXAMPLE,
        usage="CONFIG [options] [-- PYTEST_ARGS]",
    )
    parser.add_argument("config", metavar="CONFIG", help="A config.json, its folder, or the name of a shipped model.")
    deployment.add_options(parser)
    parser.add_argument("--plan", action="store_true", help="Show the kernels and their shapes, and measure nothing.")
    return parser
