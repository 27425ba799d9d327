import functools
import os
import site
import sys
import warnings
from dataclasses import replace
from importlib.machinery import PathFinder
from pathlib import Path

import _pytest.pytester
import cpuinfo
import decode_cases
import one_session
import pytest
import scripted
from hypothesis import settings

import pytest_flashinfer_perf as package
from pytest_flashinfer_perf.machine.garbage import importing

os.environ.pop("PYTEST_XDIST_WORKER", None)  # the sessions that tests start are nobody's workers
os.environ["COLUMNS"] = "80"  # nor in a terminal of another width
os.environ.pop("GITHUB_STEP_SUMMARY", None)  # and no job's
os.environ.pop("CI", None)  # where pytest prints whole sentences in its summary, too
cpuinfo.get_cpu_info = functools.cache(cpuinfo.get_cpu_info)  # or each session that writes a file starts six programs

# A machine that does other things besides is no reason for a test to fail.
settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")


def pytest_configure(config):
    config.addinivalue_line("markers", "more: is about clocks, load, a limit, a race, a browser, pip or a network")
    if config.pluginmanager.hasplugin("xdist"):
        config.pluginmanager.import_plugin("sharing")


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    with importing():  # torch and FlashInfer
        return (yield)


# What a project has that uses it is seen there, and in whatever searches for inputs.
BESIDE_HYPOTHESIS = {"test_plugin.py", "test_consumers.py", "test_light.py", "test_lazy.py", "test_make.py"}


class KeepsWhatIsInstalled(_pytest.pytester.SysModulesSnapshot):
    """After a session that a test started in this process, of what it imported only files of the test go.

    pytester would let all go. But then a class of this package is another one in the next test; torch and what is C++
    in FlashInfer end a process that imports them twice; and importing them takes eight seconds. What was there before
    is as it was before, also if the session has imported it anew.
    """

    INSTALLED = (sys.prefix, sys.base_prefix, site.getusersitepackages(), str(Path(package.__file__).parent))

    def __init__(self, preserve=None):  # noqa: ARG002, it keeps less
        self._before = set(sys.modules)
        super().__init__(lambda name: name not in self._before and self._is_installed(name))

    def _is_installed(self, name):
        """A module that has no file, like one of a compiled module, is where the whole package is."""
        modules = sys.modules[name], sys.modules.get(name.partition(".")[0])
        files = (getattr(module, "__file__", None) or "" for module in modules)
        return next(filter(os.path.isabs, files), "").startswith(self.INSTALLED)


_pytest.pytester.SysModulesSnapshot = KeepsWhatIsInstalled


class Quietly(PathFinder):
    """What FlashInfer's import warns of is not ours, wherever a test is the first that needs it."""

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        spec = super().find_spec(name, path, target) if name == "flashinfer" else None
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module
            spec.loader.exec_module = lambda module: cls._execute(execute, module)
        return spec

    @staticmethod
    def _execute(execute, module):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            execute(module)


sys.meta_path.insert(0, Quietly)


@pytest.fixture(autouse=True)
def _sessions_without_hypothesis(request, monkeypatch):
    """Its plugin makes each process of pytest import all of it, which takes longer than most that tests start."""
    if "pytester" in request.fixturenames:
        request.getfixturevalue("pytester")  # which forgets the variable
    if request.node.path.name not in BESIDE_HYPOTHESIS and request.node.path.parent.name != "fuzz":
        monkeypatch.setenv("PYTEST_ADDOPTS", "-p no:hypothesispytest")


@pytest.fixture(autouse=True)
def _no_clock_is_read(request):
    """Nor does a session that a test starts read one, but for tests that are about clocks."""
    if not request.node.get_closest_marker("more"):
        request.getfixturevalue("scripted_times")


@pytest.fixture
def scripted_times(monkeypatch):
    monkeypatch.setenv("PYTEST_PLUGINS", "scripted")
    monkeypatch.setenv("PYTHONPATH", str(Path(scripted.__file__).parent), prepend=os.pathsep)
    if scripted.INSTRUMENTS in sys.modules:
        instruments = sys.modules[scripted.INSTRUMENTS].INSTRUMENTS
        monkeypatch.setitem(instruments, "wall", instruments["wall"])
        scripted.install()


@pytest.fixture(autouse=True)
def _planted_backends_go(request):
    """What a test declares beside a routine's own, sessions that it starts included."""
    if "pytester" not in request.fixturenames and "torch" not in sys.modules:
        yield  # without torch no routine is imported
        return
    from pytest_flashinfer_perf.routines import all_routines

    before = {name: dict(routine.backends) for name, routine in all_routines().items()}
    yield
    for name, routine in all_routines().items():
        routine.backends.clear()
        routine.backends.update(before[name])


@pytest.fixture
def cpu():
    from pytest_flashinfer_perf.machine import devices

    return devices.find("cpu")


@pytest.fixture
def hopper(cpu):
    """What an H200 says of itself, for decisions that need no H200."""
    return replace(cpu, name="NVIDIA H200", capability=(9, 0), uuid="GPU-0", cache_bytes=60 << 20, processors=132)


@pytest.fixture
def blackwell(cpu):
    return replace(cpu, name="NVIDIA B200", capability=(10, 0), uuid="GPU-0", cache_bytes=126 << 20, processors=148)


@pytest.fixture
def routine():
    from pytest_flashinfer_perf.routines.attention.decode import decode

    return decode


@pytest.fixture(scope="session")
def on_cpu():
    from on_cpu import OnCpu  # which needs torch

    return OnCpu


@pytest.fixture(scope="session")
def moe(on_cpu):
    from pytest_flashinfer_perf.routines.moe.cutlass import cutlass_moe

    return on_cpu(cutlass_moe)


@pytest.fixture
def session(pytester):
    """Starts a session of pytest in a folder of its own: `one_session.run`."""
    return functools.partial(one_session.run, pytester)


@pytest.fixture
def suite(pytester):
    """A test file with two small cases of decode."""
    pytester.makepyfile(test_decode=decode_cases.TEST)
    return pytester


@pytest.fixture
def build_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path_factory.getbasetemp() / "builds"))


@pytest.fixture
def gemm(pytester):
    """A set with one workload of a GEMM, and no solution yet."""
    import traceset_runs  # which needs flashinfer_bench

    return traceset_runs.gemm(pytester.path / "set")
