"""Entry point for pytest: options, markers and the fixture `perf`.

Most sessions of a project have no case. They load this module and those that declare the options, and nothing else of
this package (`test_lazy.py`). The hooks that do more are in hooks.py: they join a session when it is
configured, if an option or an argument asks for them, and else when the first test that needs them is collected.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_flashinfer_perf import hookspecs, loading
from pytest_flashinfer_perf.plugin import options
from pytest_flashinfer_perf.session.stash import confirms, is_worker
from pytest_flashinfer_perf.settings.option import Child

if TYPE_CHECKING:
    from pytest_flashinfer_perf.plugin.fixture import Perf
    from pytest_flashinfer_perf.spec.params import Params
    from pytest_flashinfer_perf.spec.routine import AnyRoutine

HOOKS = "flashinfer-perf-hooks"
WRONG = pytest.StashKey[pytest.UsageError]()  # what is wrong in the settings of a session that hooks have joined late


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    pluginmanager.add_hookspecs(hookspecs)


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    config: Any = pluginmanager.get_plugin("pytestconfig")
    options.add_own(parser)
    if loading.are_needed(config):
        loading.register(pluginmanager)
        options.add(parser, loading.options(pluginmanager))
    pluginmanager.register(Beginning(), "flashinfer-perf-beginning")


class Beginning:
    """Begins a session before any extension reads its options, in `pytest_configure`: the last to join comes first."""

    def pytest_configure(self, config: pytest.Config) -> None:
        if confirms():
            options.drop(config, Child.NONE, Child.PART)
        for marker in (*options.MARKERS, *loading.markers(config.pluginmanager)):
            config.addinivalue_line("markers", marker)
        if any(word.startswith("tests/") and not _path(config, word).exists() for word in config.args):
            from pytest_flashinfer_perf.plugin import cases

            cases.find_arguments(config)
        if _needs_session(config):
            _hooks(config)


def _needs_session(config: pytest.Config) -> bool:
    """Whether an option, an argument or a settings file asks for more than tests may do, or workers may find cases."""
    option = config.option
    workers = getattr(option, "tx", None) or getattr(option, "dist", "no") != "no"
    starts_workers = workers and not is_worker(config)
    compared = getattr(option, "benchmark_compare", None)
    if starts_workers or compared or options.any_is_set(config):
        return True
    if any(config.hook.pytest_perf_collects(path=_path(config, argument)) for argument in config.args):
        return True
    # A project's settings are read at once: what is wrong in them ends the session.
    shared = config.rootpath / "pyproject.toml"
    in_shared = shared.is_file() and "[tool.flashinfer-perf" in shared.read_text(encoding="utf-8", errors="replace")
    return in_shared or (config.rootpath / "flashinfer-perf.toml").is_file()


def _path(config: pytest.Config, argument: str) -> Path:
    return config.invocation_params.dir / argument.partition("::")[0]


def _hooks(config: pytest.Config) -> Any:
    """The hooks of a session with cases, which join it now if they have not yet, unless its settings are wrong."""
    from pytest_flashinfer_perf.plugin import hooks

    if WRONG in config.stash:
        raise config.stash[WRONG]
    loading.join_late(config)
    if not config.pluginmanager.hasplugin(HOOKS):
        config.pluginmanager.register(hooks, HOOKS)
        try:
            hooks.begin(config)
        except pytest.UsageError as error:
            config.pluginmanager.unregister(name=HOOKS)
            config.stash[WRONG] = error
            raise
    return hooks


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Remove an older file of `--benchmark-json`, whether or not this session will have anything to write there.

    What is no JSON was named by mistake and stays. So does a link, without what it leads to.
    """
    config = session.config
    named = getattr(config.option, "benchmark_json", None)
    runs_nothing = any(
        getattr(config.option, name) for name in ("collectonly", "showfixtures", "show_fixtures_per_test")
    )
    if not named or runs_nothing or is_worker(config):
        return
    path = config.invocation_params.dir / named
    try:
        if path.is_file():
            with path.open("rb") as file:
                begins_as_json = file.read(1) in (b"{", b"")
            if begins_as_json:
                path.resolve().unlink()
    except OSError as error:
        raise pytest.UsageError(f"--benchmark-json: {error}") from error


def pytest_collectstart(collector: pytest.Collector) -> None:
    """Load the extensions before a test file is imported that may use a marker of theirs."""
    is_late = isinstance(collector, pytest.Module) and not loading.is_done(collector.config.pluginmanager)
    if is_late and loading.speaks_of_us(collector.path):
        loading.join_late(collector.config)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    marker = metafunc.definition.get_closest_marker("perf_cases")
    if marker is not None:
        named, *shapes = marker.args
        parametrize(metafunc, lambda: {"": named}, shapes)


def parametrize(
    metafunc: pytest.Metafunc,
    routines: Callable[[], Mapping[str, AnyRoutine | str]],
    shapes: Sequence[Params | str] = (),
) -> None:
    """Give a test the cases of these routines, each by what its ids begin with: here, so that the first test has them.

    An error in the settings would be one of this test's file, and of the next: it is raised after collection, once.
    """
    try:
        hooks = _hooks(metafunc.config)
    except pytest.UsageError:
        return
    hooks.parametrize(metafunc, routines, shapes)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(
    session: pytest.Session, config: pytest.Config, items: list[pytest.Item]
) -> Generator[None, object, object]:
    """Complete the items before extensions see them."""
    if WRONG in config.stash or config.pluginmanager.hasplugin(HOOKS) or any(map(options.needs_device, items)):
        hooks = _hooks(config)
        hooks.complete(session, config, items)
    return (yield)


@pytest.fixture
def perf(request: pytest.FixtureRequest, benchmark: Any) -> Iterator[Perf]:
    """Measure a case with `perf(case)`, your own call with `perf.time(fn, *args, flops=, bytes=, reference=, out=)`."""
    from pytest_flashinfer_perf.plugin import fixture

    yield from fixture.provide(request, benchmark)
