"""What can be said on pytest's command line, and what a run was asked of it."""

from __future__ import annotations

import argparse
import math
import re
from pathlib import Path

import pytest

from pytest_flashinfer_perf.config import planting, project_file, quarantine, tolerances
from pytest_flashinfer_perf.config.planting import PlantError
from pytest_flashinfer_perf.config.project_file import ProjectFile, ProjectFileError
from pytest_flashinfer_perf.config.settings import Checking, Fuzzing, Measuring, Settings, TraceSets
from pytest_flashinfer_perf.config.usage import errors_of_use, not_negative, positive
from pytest_flashinfer_perf.gate.likeness import ALLOWABLE
from pytest_flashinfer_perf.running import shards
from pytest_flashinfer_perf.running.workers import OPT_IN

LONGEST_LIMIT_S = 1e9  # what faulthandler can wait
MAY_BE_EMPTY = ("flags", "case_tag", "trace_output", "gate_allow", "gate")  # the gate refuses nothing by itself


def add(parser: pytest.Parser) -> None:
    group = parser.getgroup("flashinfer-perf", "FlashInfer kernel performance")
    _add_cases(group)
    _add_conditions(group)
    _add_measuring(group)
    _add_trace_sets(group)
    _add_checking(group)
    _add_running(parser, group)
    _add_fuzzing(group)
    _add_files(group)
    _add_gate(group)
    _add_vllm(group)


def _add_cases(group: pytest.OptionGroup) -> None:
    group.addoption(
        "--perf-suite", choices=("smoke", "default", "full", "plan"), default="default", help="tier of shapes"
    )
    group.addoption("--perf-backends", metavar="A,B", default=None, help="measure these backends only")
    group.addoption("--perf-case", metavar="FLAGS", action="append", default=[], help="measure exactly this case")
    group.addoption(
        "--perf-testlist",
        metavar="FILE",
        type=_file,
        action="append",
        default=[],
        help="measure the lines of this file",
    )
    group.addoption("--perf-flags", metavar="FLAGS", default="", help="said of every line of testlists; its own win")
    group.addoption("--perf-model", metavar="NAME", default=None, help="measure this model's shapes instead of a tier")
    group.addoption("--perf-tp", metavar="N", type=positive, default=None, help="GPUs that share its heads (1)")
    group.addoption("--perf-dp", metavar="N", type=positive, default=None, help="groups that share its requests (1)")
    group.addoption("--perf-ep", metavar="N", type=positive, default=None, help="GPUs that share its experts (1)")


def _add_conditions(group: pytest.OptionGroup) -> None:
    group.addoption("--perf-device", metavar="DEVICE", default="auto", help="auto, cpu, cpu:any, cuda or cuda:N")
    group.addoption("--perf-seed", metavar="N", type=int, default=None, help="seed of the inputs (42)")
    group.addoption(
        "--perf-max-memory", metavar="GIB", type=_size, default=None, help="skip cases that need more (what is free)"
    )
    group.addoption("--perf-case-tag", metavar="TAG", default=None, help="free text for every row")
    group.addoption("--perf-autotune-cache", metavar="FILE", default=None, help="tactics that FlashInfer's tuner kept")
    group.addoption(
        "--perf-strict-skips", metavar="GLOB", action="append", default=[], help="fail skips whose id matches"
    )


def _add_measuring(group: pytest.OptionGroup) -> None:
    group.addoption(
        "--perf-instrument", choices=("auto", "cupti", "events", "wall"), default="auto", help="how time is read"
    )
    group.addoption(
        "--perf-cuda-graph", choices=("auto", "on", "off"), default="auto", help="replay calls from CUDA graphs"
    )
    group.addoption(
        "--perf-cold-l2", choices=("rotate", "flush", "none"), default="rotate", help="how the L2 is made cold"
    )
    group.addoption(
        "--perf-iters", metavar="N", type=positive, default=None, help="timed calls, exactly (else until precise)"
    )
    group.addoption(
        "--perf-warmup", metavar="N", type=not_negative, default=None, help="untimed calls before, exactly (up to 5)"
    )
    group.addoption(
        "--perf-peaks", choices=("measured", "datasheet"), default="measured", help="the roof to compare with"
    )
    group.addoption(
        "--perf-plant", metavar="FILE", default=None, help="extra work behind timed calls: seconds by test id, in JSON"
    )


def _add_trace_sets(group: pytest.OptionGroup) -> None:
    group.addoption("--perf-trace-set", metavar="PATH", action="append", default=[], help="evaluate this data set")
    group.addoption("--perf-trust-solutions", action="store_true", help="run the code that data sets hold")
    group.addoption("--perf-trace-config", metavar="FILE", default=None, help="how data sets are evaluated, in YAML")
    group.addoption(
        "--perf-trace-option", metavar="NAME=VALUE", action="append", default=[], help="the same, on the command line"
    )
    group.addoption(
        "--perf-trace-output", metavar="DIR", default=None, help="where traces go (its traces/), '' for nowhere"
    )


def _add_checking(group: pytest.OptionGroup) -> None:
    group.addoption(
        "--perf-refcheck", choices=("on", "off", "only"), default="on", help="compare answers with the reference"
    )
    group.addoption(
        "--perf-allow-output-mismatch", action="store_true", help="keep rows of wrong answers, as status: wrong"
    )


def _add_running(parser: pytest.Parser, group: pytest.OptionGroup) -> None:
    group.addoption(
        "--perf-timeout", metavar="SECONDS", type=_seconds, default=300.0, help="most that a case may take (300), or 0"
    )
    group.addoption("--perf-prebuild", action="store_true", help="first compile what the cases need, all of it at once")
    group.addoption("--perf-resume", action="store_true", help="keep what an interrupted run has finished")
    group.addoption("--perf-shard", metavar="I/N", type=_shard, default=None, help="run this part of N, from 1")
    group.addoption(
        "--perf-shard-by", metavar="FILE", default=None, help="split by what cases took in this JSON (evenly)"
    )
    parser.addini(OPT_IN, "-n auto starts a worker for each visible GPU, pinned to it", type="bool", default=False)


def _add_fuzzing(group: pytest.OptionGroup) -> None:
    group.addoption("--perf-fuzz", action="store_true", help="search shapes for wrong answers, instead of timing")
    group.addoption(
        "--perf-fuzz-flags", metavar="FLAGS", action="append", default=[], help="draw such shapes; again for others too"
    )
    group.addoption(
        "--perf-fuzz-seconds", metavar="N", type=positive, default=None, help="stop each search after that long"
    )
    group.addoption(
        "--perf-findings", metavar="DIR", default=None, help="keep findings here (.hypothesis/perf-findings)"
    )


def _add_files(group: pytest.OptionGroup) -> None:
    group.addoption("--perf-config", metavar="FILE", default=None, help="settings file (flashinfer-perf.toml)")
    group.addoption("--perf-host", action="store_true", help="show what each call costs the host")
    group.addoption("--perf-html", metavar="FILE", default=None, help="write a report that a browser shows")
    group.addoption("--perf-csv", metavar="FILE", default=None, help="write rows as flashinfer_benchmark.py does")
    group.addoption("--perf-only", metavar="FILE", default=None, help="run only tests whose ids are lines of this file")


def _add_gate(group: pytest.OptionGroup) -> None:
    group.addoption(
        "--perf-gate",
        metavar="BASELINE",
        default=None,
        help="judge this run: a JSON file, a folder of them, a saved name",
    )
    group.addoption("--perf-gate-strict", action="store_true", help="AMBIGUOUS ends the run with exit code 2")
    group.addoption("--perf-gate-allow", metavar="A,B", default="", help="admit by name: " + ", ".join(ALLOWABLE))
    group.addoption("--perf-calibration", metavar="FILE", default="auto", help="this machine's noise; auto, or none")
    group.addoption(
        "--perf-save-baseline", metavar="NAME", type=_name, default=None, help="save this run for --perf-gate=NAME"
    )


def _add_vllm(group: pytest.OptionGroup) -> None:
    group.addoption(
        "--perf-vllm-csv", metavar="DIR", type=_folder, default=None, help="write vllm_decode's table as vLLM does"
    )


def _shard(text: str) -> shards.Shard:
    try:
        return shards.parse(text)
    except shards.ShardError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _seconds(text: str) -> float:
    seconds = _number(text)
    if not 0 <= seconds <= LONGEST_LIMIT_S:
        raise argparse.ArgumentTypeError(f"must be a number of seconds, 0 for no limit, got {text!r}")
    return seconds


def _size(text: str) -> float:
    size = _number(text)
    if not 0 < size < math.inf:
        raise argparse.ArgumentTypeError(f"must be a number of GiB above 0, got {text!r}")
    return size


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _name(text: str) -> str:
    if not re.fullmatch(r"[\w.+-]+", text):
        raise argparse.ArgumentTypeError(f"must be letters, digits and . _ + -, got {text!r}")
    return text


def _file(text: str) -> str:
    if text and Path(text).is_dir():
        raise argparse.ArgumentTypeError(
            f"{text!r} is a folder: name each of its files, as --perf-testlist={text}/FILE"
        )
    return text


def _folder(text: str) -> str:
    if not Path(text).is_dir():
        raise argparse.ArgumentTypeError(f"must be a folder that is there, got {text!r}")
    return text


def _refuse_empty(config: pytest.Config) -> None:
    """An empty name or pattern would be taken for none, and the run for what was asked."""
    for option, value in vars(config.option).items():
        said = value if isinstance(value, list) else [value]
        if option.startswith("perf_") and option[5:] not in MAY_BE_EMPTY and any(map(_is_empty, said)):
            raise pytest.UsageError(f"--{option.replace('_', '-')}: an empty name: of a variable that is not set?")


def _is_empty(value: object) -> bool:
    return isinstance(value, str) and not value.strip(" ,")


def settings(config: pytest.Config) -> Settings:
    _refuse_empty(config)
    measuring = ("instrument", "cuda_graph", "cold_l2", "iters", "warmup", "peaks")
    checking = ("refcheck", "allow_output_mismatch")
    with errors_of_use(ProjectFileError):
        project = _project(config)
        bounds, quarantined = tolerances.read(project), quarantine.read(project)
    return Settings(
        suite=config.getoption("perf_suite"),
        backends=tuple((config.getoption("perf_backends") or "").replace(",", " ").split()),
        cases=tuple(config.getoption("perf_case")),
        testlists=tuple(config.getoption("perf_testlist")),
        flags=config.getoption("perf_flags"),
        **{name: config.getoption(f"perf_{name}") for name in ("model", "tp", "dp", "ep")},
        device=config.getoption("perf_device"),
        max_memory=config.getoption("perf_max_memory"),
        seed=config.getoption("perf_seed"),
        case_tag=config.getoption("perf_case_tag"),
        autotune_cache=config.getoption("perf_autotune_cache"),
        strict_skips=tuple(config.getoption("perf_strict_skips")),
        trace=_trace(config),
        project=project,
        measuring=Measuring(
            **{name: config.getoption(f"perf_{name}") for name in measuring},
            max_time=float(config.getoption("benchmark_max_time", Measuring.max_time)),
        ),
        checking=Checking(**{name: config.getoption(f"perf_{name}") for name in checking}, tolerances=bounds),
        fuzzing=_fuzzing(config),
        quarantine=quarantined,
        plants=_plants(config),
    )


def _plants(config: pytest.Config) -> dict[str, float]:
    named = config.getoption("perf_plant")
    with errors_of_use(PlantError):
        return planting.read(config.invocation_params.dir / named) if named else {}


def _trace(config: pytest.Config) -> TraceSets:
    return TraceSets(
        sets=tuple(config.getoption("perf_trace_set")),
        trust=config.getoption("perf_trust_solutions"),
        config=config.getoption("perf_trace_config"),
        options=tuple(config.getoption("perf_trace_option")),
        output=config.getoption("perf_trace_output"),
    )


def _project(config: pytest.Config) -> ProjectFile:
    """A file that is named is the caller's; the project's own is where its pytest settings are."""
    named = config.getoption("perf_config")
    return project_file.find(config.invocation_params.dir if named else config.rootpath, named)


def _fuzzing(config: pytest.Config) -> Fuzzing:
    named = config.getoption("perf_findings")
    return Fuzzing(
        config.getoption("perf_fuzz"),
        tuple(config.getoption("perf_fuzz_flags")),
        config.getoption("perf_fuzz_seconds"),
        config.rootpath / Fuzzing.findings if named is None else config.invocation_params.dir / named,
    )
