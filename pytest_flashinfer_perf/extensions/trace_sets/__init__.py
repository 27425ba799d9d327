"""Evaluate FlashInfer-Bench data sets: definitions, workloads and solutions, which are other people's code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pytest

from pytest_flashinfer_perf.api import Child, Option, option, options

if TYPE_CHECKING:
    from flashinfer_bench.data import TraceSet

    from pytest_flashinfer_perf.extensions.trace_sets.benchmark import Benchmark
    from pytest_flashinfer_perf.extensions.trace_sets.config import BenchmarkConfig, EvalConfig

USES = ("fuzz",)  # its process that answers requests which may crash it

__all__ = ["Benchmark", "BenchmarkConfig", "EvalConfig", "TraceSet"]

_HOMES = {
    "Benchmark": f"{__name__}.benchmark",
    "BenchmarkConfig": f"{__name__}.config",
    "EvalConfig": f"{__name__}.config",
    "TraceSet": "flashinfer_bench.data",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    verify_installed()
    return getattr(importlib.import_module(_HOMES[name]), name)


def verify_installed() -> None:
    if find_spec("flashinfer_bench") is None:
        raise ImportError(
            "trace sets need the flashinfer-bench package: pip install flashinfer-bench pydantic pyyaml safetensors"
        )


OPTIONS = (
    option(
        "--perf-trace-set",
        child=Child.OWN,
        metavar="PATH",
        **options.REPEATABLE,
        help="Evaluate the solutions of this data set (repeatable).",
    ),
    option(
        "--perf-trust-solutions",
        child=Child.OWN,
        action="store_true",
        help="Run the code that data sets contain. Without this option their solutions are skipped.",
    ),
    option(
        "--perf-trace-config",
        child=Child.OWN,
        reads=True,
        metavar="FILE",
        help="YAML file with the iterations, tolerances and timeouts for data sets. Default: built-in values.",
    ),
    option(
        "--perf-trace-option",
        child=Child.OWN,
        metavar="NAME=VALUE",
        **options.REPEATABLE,
        help="One field of such a file, which wins over the file (repeatable).",
    ),
    option(
        "--perf-trace-output",
        child=Child.OWN,
        may_be_empty=True,
        metavar="DIR",
        help="Folder to write traces to, '' to write none. Default: the folder `traces` of the data set.",
    ),
)


def pytest_perf_options() -> Mapping[str, Sequence[Option]]:
    return {"FlashInfer-Bench data sets": OPTIONS}


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Refuse data sets that pytest would walk, before it imports or reads a file of theirs."""
    here = early_config.invocation_params.dir
    for argument in early_config.known_args_namespace.file_or_dir or ["."]:
        name = argument.partition("::")[0]
        root = here / name
        if (root / "definitions").is_dir() and (root / "workloads").is_dir():
            way = f"name it by --perf-trace-set={name}, from a folder outside of it"
            raise pytest.UsageError(f"{root} is a data set, whose files pytest would read: {way}")


def pytest_configure(config: pytest.Config) -> None:
    """Alone, data sets replace the configured test paths; pytest neither walks nor imports them."""
    roots = [(config.invocation_params.dir / name).absolute() for name in config.getoption("perf_trace_set")]
    for root in roots:
        if not (root / "definitions").is_dir():
            raise pytest.UsageError(f"--perf-trace-set={root}: has no folder called definitions")
    if roots:
        if config.args_source is not pytest.Config.ArgsSource.ARGS:
            config.args.clear()
        from pytest_flashinfer_perf.api import usage

        with usage.errors_of_use(ImportError):
            verify_installed()
            from pytest_flashinfer_perf.extensions.trace_sets.items import Evaluations

            config.pluginmanager.register(Evaluations.of(config, roots), "flashinfer-perf-evaluations")
