"""A step of a deployment: prefill or decode, its requests, and how the model is distributed over GPUs."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, fields

from pytest_flashinfer_perf.extensions.models.config_json import LARGEST, ConfigError
from pytest_flashinfer_perf.spec import flags
from pytest_flashinfer_perf.spec.params import ParamError
from pytest_flashinfer_perf.spec.presets import Spread

PHASES = ("decode", "prefill")
ONE_GPU = Spread()
KV_DTYPES = ("bfloat16", "fp8_e4m3")
WAYS = {"tp": "Tensor-parallel", "dp": "Data-parallel", "ep": "Expert-parallel"}
SIZES = {
    "batch": "Requests of the whole deployment.",
    "context": "Tokens of each request: those in the cache (decode), or those of the prompt (prefill).",
    "page-size": "Tokens of a page of the KV cache.",
}


@dataclass(frozen=True)
class Step:
    """`batch` is of the whole deployment; `context` are the tokens that each request has, or that are prefilled."""

    phase: str = "decode"
    batch: int = 64
    context: int = 8192
    page_size: int = 64
    kv_dtype: str = "bfloat16"
    spread: Spread = ONE_GPU

    @property
    def title(self) -> str:
        return f"one {self.phase} step of {self.batch} requests with {self.context} tokens"

    @property
    def flags(self) -> str:
        """The flags that `parse` reads as this step."""
        own = {**vars(self), **self.spread._asdict()}
        return " ".join(f"--{name.replace('_', '-')} {value}" for name, value in own.items() if name != "spread")

    @property
    def requests(self) -> int:
        """The requests of one group of GPUs."""
        return -(-self.batch // self.spread.dp)

    @property
    def tokens(self) -> int:
        return self.requests * (self.context if self.phase == "prefill" else 1)

    @property
    def routed_tokens(self) -> int:
        """GPUs that share experts get the tokens of all groups."""
        return self.tokens * (self.spread.dp if self.spread.ep > 1 else 1)


def parse(text: str, in_name: Mapping[str, int]) -> Step:
    """Parse the value of `--perf-step`; `in_name` are the numbers of GPUs that the model's name ends with."""
    parser = flags.parser()
    add_options(parser)
    try:
        args = parser.parse_args(flags.split(text))
    except ParamError as error:
        raise ConfigError(f"--perf-step: {error}") from error
    for way, gpus in in_name.items():
        if getattr(args, way) not in (1, gpus):
            raise ConfigError(f"--perf-step: --{way} {getattr(args, way)}: the model's name has -{way}{gpus}")
        setattr(args, way, gpus)
    return read(args)


def read(args: argparse.Namespace) -> Step:
    spread = Spread(**{way: getattr(args, way) for way in Spread._fields})
    named = [field.name for field in fields(Step) if field.name != "spread"]
    return Step(**{name: getattr(args, name) for name in named}, spread=spread)


def add_options(parser: argparse.ArgumentParser) -> None:
    for way, meaning in WAYS.items():
        parser.add_argument(f"--{way}", type=size, default=1, metavar="N", help=f"{meaning} size. Default: 1.")
    parser.add_argument("--phase", choices=PHASES, default=Step.phase, help="Default: %(default)s.")
    for name, meaning in SIZES.items():
        default = getattr(Step, name.replace("-", "_"))
        parser.add_argument(f"--{name}", type=size, default=default, metavar="N", help=f"{meaning} Default: {default}.")
    parser.add_argument(
        "--kv-dtype", choices=KV_DTYPES, default=Step.kv_dtype, help="Type of the KV cache. Default: %(default)s."
    )


def size(text: str) -> int:
    if not (text.isascii() and text.isdecimal()) or not 1 <= int(text[:20]) <= LARGEST:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1 to {LARGEST}, got {text[:40]!r}")
    return int(text)
