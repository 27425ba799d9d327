"""The files among pytest's arguments: findings, testlists, recordings, those of options, the list of `--perf-only`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from pytest_flashinfer_perf.session.stash import SETTINGS

if TYPE_CHECKING:
    from pytest_flashinfer_perf.extensions.trace_sets.items import Evaluations
    from pytest_flashinfer_perf.settings.settings import Settings


def findings_in(path: Path, parent: pytest.Collector) -> list[pytest.Collector]:
    from pytest_flashinfer_perf.extensions.fuzz import findings

    if not findings.is_finding(path):
        return []
    from pytest_flashinfer_perf.plugin.items import FindingFile

    return [FindingFile.from_parent(parent, path=path)]


def is_testlist(path: Path, config: pytest.Config) -> bool:
    if any(path.samefile(config.invocation_params.dir / name) for name in config.stash[SETTINGS].testlists):
        return True
    if path.suffix != ".txt":
        return False
    from pytest_flashinfer_perf.extensions.testlists import testlist

    return testlist.is_testlist(path)


def is_recording(path: Path) -> bool:
    if path.suffix != ".jsonl":
        return False
    from pytest_flashinfer_perf.extensions.traffic import recording

    return recording.is_recording(path)


def set_arguments(config: pytest.Config, settings: Settings) -> None:
    """Add the suite's folders for what is there only, and the files of --perf-testlist, to pytest's arguments."""
    named = config.args_source is pytest.Config.ArgsSource.ARGS
    if (settings.cases or settings.api or settings.model or settings.plan) and not named:
        from pytest_flashinfer_perf.plugin import cases

        step = cases.runs_a_step(settings.model, settings.step, settings.plan)
        if settings.cases or settings.api or step:
            config.args[:] = map(str, cases.asked_paths(api=settings.api, cases=settings.cases, step=step))
    if settings.testlists:
        asked = named or settings.cases or settings.api
        config.args[:] = [*(config.args if asked else ()), *settings.testlists]


def keep_only(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect all tests but those that the file of `--perf-only` lists."""
    path = config.invocation_params.dir / config.getoption("perf_only")
    try:
        asked = set(path.read_text(encoding="utf-8").splitlines())
    except OSError as error:
        raise pytest.UsageError(f"--perf-only: {error}") from error
    others = [item for item in items if item.nodeid not in asked]
    items[:] = [item for item in items if item.nodeid in asked]
    config.hook.pytest_deselected(items=others)


# Find FlashInfer-Bench data sets among pytest's arguments; pytest neither walks nor imports them.

INI = {
    "pytest.ini": "",
    ".pytest.ini": "",
    "pytest.toml": "",
    ".pytest.toml": "",
    "pyproject.toml": r"\[tool\.pytest\b",
    "tox.ini": r"\[pytest\]",
    "setup.cfg": r"\[tool:pytest\]",
}


class Asked(NamedTuple):
    """A data set, and the names of its items if only some are wanted."""

    root: Path
    names: tuple[str, ...] = ()


def is_data_set(path: Path) -> bool:
    return (path / "definitions").is_dir()


def refuse_foreign(config: pytest.Config) -> None:
    """Refuse data sets with Python or ini files, before pytest would import or read them."""
    here = config.invocation_params.dir
    for name in config.known_args_namespace.file_or_dir or config.getini("testpaths") or ["."]:
        root = here / name.partition("::")[0]
        strange = _foreign(root) if is_data_set(root) else None
        if strange is not None:
            way = f"name the set by --perf-trace-set={name} instead, from a folder outside of it"
            raise pytest.UsageError(f"{root} is a data set with a {strange}, which pytest would read: {way}")


def _foreign(root: Path) -> Path | None:
    """A file that pytest would read. Tests are not, since they are not collected; the official set has some."""
    code = iter(sorted(root.rglob("conftest.py")))
    ini = ((path, pattern) for name, pattern in INI.items() for path in sorted(root.rglob(name)))
    read = (path for path, pattern in ini if re.search(pattern, path.read_text(errors="replace")))
    found = next(code, None) or next(read, None)
    return found.relative_to(root) if found else None


def take(config: pytest.Config, settings: Settings) -> list[Asked]:
    """The data sets of --perf-trace-set and those among pytest's arguments, which are removed there."""
    here = config.invocation_params.dir
    asked = [Asked((here / name).absolute()) for name in settings.trace.sets]
    for one in asked:
        if not is_data_set(one.root):
            raise pytest.UsageError(f"--perf-trace-set={one.root}: has no folder called definitions")
    if asked and config.args_source is not pytest.Config.ArgsSource.ARGS:
        config.args.clear()
    for argument in list(config.args):
        path, _, name = argument.partition("::")
        if is_data_set(here / path):
            config.args.remove(argument)
            asked.append(Asked((here / path).absolute(), (name,) if name else ()))
    if settings.trace.trust and not config.option.collectonly:
        _verify_traces([one.root for one in asked], settings)
    return asked


def _verify_traces(roots: Iterable[Path], settings: Settings) -> None:
    from pytest_flashinfer_perf.files import verify_outputs

    for folder in map(settings.trace.traces, roots):
        if folder is not None:
            verify_outputs({"--perf-trace-output": folder / "any.jsonl"})


def evaluations(settings: Settings) -> Evaluations:
    from pytest_flashinfer_perf.extensions import trace_sets
    from pytest_flashinfer_perf.settings.usage import errors_of_use

    with errors_of_use(ImportError):
        trace_sets.verify_installed()
        from pytest_flashinfer_perf.extensions.trace_sets.config import BenchmarkConfig, option
        from pytest_flashinfer_perf.extensions.trace_sets.items import Evaluations
    given = settings.trace.config
    overrides = dict(map(option, settings.trace.options))
    config = BenchmarkConfig.from_yaml(given, **overrides) if given else BenchmarkConfig.default(**overrides)
    return Evaluations(settings, config)


def items(session: pytest.Session, asked: Asked, shared: Evaluations) -> Iterator[pytest.Item]:
    from pytest_flashinfer_perf.extensions.trace_sets.items import TraceSetItems

    outside = not asked.root.is_relative_to(session.config.rootpath)
    nodeid = asked.root.as_posix() if outside else None  # pytest makes none for a path outside its rootdir
    collector = TraceSetItems.from_parent(session, path=asked.root, nodeid=nodeid, shared=shared)
    made = list(session.genitems(collector))
    unknown = set(asked.names) - {item.name for item in made}
    if unknown:
        raise pytest.UsageError(f"{asked.root}: has no item {min(unknown)}")
    yield from (item for item in made if not asked.names or item.name in asked.names)
