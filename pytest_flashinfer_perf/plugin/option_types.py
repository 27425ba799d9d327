"""The types of options: parse an argument's text, or raise argparse's error."""

from __future__ import annotations

import argparse
import math
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_flashinfer_perf.running.shards import Shard

LONGEST_LIMIT_S = 1e9  # the longest time that faulthandler accepts


def shard(text: str) -> Shard:
    from pytest_flashinfer_perf.running import shards  # imported where one is given

    try:
        return shards.parse(text)
    except shards.ShardError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def seconds(text: str) -> float:
    seconds = _number(text)
    if not 0 <= seconds <= LONGEST_LIMIT_S:
        raise argparse.ArgumentTypeError(f"must be a number of seconds, 0 for no limit, got {text!r}")
    return seconds


def size(text: str) -> float:
    size = _number(text)
    if not 0 < size < math.inf:
        raise argparse.ArgumentTypeError(f"must be a number of GiB above 0, got {text!r}")
    return size


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def name(text: str) -> str:
    if not re.fullmatch(r"[\w.+-]+", text):
        raise argparse.ArgumentTypeError(f"must be letters, digits and . _ + -, got {text!r}")
    return text


def file(text: str) -> str:
    if text and Path(text).is_dir():
        raise argparse.ArgumentTypeError(
            f"{text!r} is a folder: name each of its files, as --perf-testlist={text}/FILE"
        )
    return text


def folder(text: str) -> str:
    if not Path(text).is_dir():
        raise argparse.ArgumentTypeError(f"must be an existing folder, got {text!r}")
    return text
