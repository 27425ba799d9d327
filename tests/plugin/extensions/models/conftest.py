import json

import pytest
from reports import document
from step_runs import TIMES, TINY, completed, rows

from pytest_flashinfer_perf.extensions.models import budget
from pytest_flashinfer_perf.extensions.models.step import plan_of
from pytest_flashinfer_perf.rows import run_file


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """The folder of a small model's config."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(TINY))
    return folder


@pytest.fixture(scope="session")
def plan(tiny):
    return completed(tiny)


@pytest.fixture
def shown(plan):
    """The budget of a run with these times, rows, or this whole file, and its lines."""

    def shown(head=TIMES):
        measured = rows(plan, head) if isinstance(head, dict) else head
        run = run_file.parse(head if "benchmarks" in head else document(*measured), "run.json")
        found = budget.of_run(plan_of(run) or plan, run)
        return found, "".join(f"{line}\n" for line in budget.lines(found))

    return shown
