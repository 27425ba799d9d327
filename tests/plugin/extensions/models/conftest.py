import json

import pytest
from reports import document, write
from step_runs import FLAGS, TIMES, TINY, completed, rows


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
def shown(tmp_path, tiny, plan, command):
    """Exit code and output of `model`, of a run with these times, rows, or this whole file, and of its base."""

    def shown(head=TIMES, base=None, *words):
        for name, times in (("run", head), ("base", base)):
            if times is not None:
                measured = rows(plan, times) if isinstance(times, dict) else times
                made = times if "benchmarks" in times else document(*measured)
                words = (*words, f"--{name}", write(tmp_path / f"{name}.json", made))
        return command("model", tiny, *FLAGS, *words)

    return shown
