"""A run in parts, on several machines, and the parts' files joined."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import pytest

from pytest_flashinfer_perf.api import Child, Option, option, options

if TYPE_CHECKING:
    from pytest_flashinfer_perf.api import Command
    from pytest_flashinfer_perf.extensions.shards.shards import Shard


def shard(text: str) -> Shard:
    from pytest_flashinfer_perf.extensions.shards import shards

    try:
        return shards.parse(text)
    except shards.ShardError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


SHARD = option(
    "--perf-shard",
    child=Child.PART,
    metavar="I/N",
    type=shard,
    help="Run part I of N of the tests, counted from 1. Join the parts' files by `flashinfer-perf merge`.",
)


def pytest_perf_options() -> Mapping[str, Sequence[Option]]:
    return {options.LONG_RUNS: (SHARD,)}


def pytest_configure(config: pytest.Config) -> None:
    part = config.getoption("perf_shard")
    if part is not None:
        from pytest_flashinfer_perf.extensions.shards.shards import Sharding

        config.pluginmanager.register(Sharding(config, part), "flashinfer-perf-sharding")


def pytest_perf_commands() -> tuple[Command, ...]:
    from pytest_flashinfer_perf.api import Command

    return (
        Command(
            "merge",
            "Join the JSON files of shards into the file of one run.",
            f"{__name__}.merge_command:main",
            "prepare",
        ),
    )
