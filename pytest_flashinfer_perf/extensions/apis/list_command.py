"""`flashinfer-perf list --api`: the templates of the installed FlashInfer, and why some cannot be measured."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_flashinfer_perf.api import commands, printing
from pytest_flashinfer_perf.extensions.apis.lookup import unknown
from pytest_flashinfer_perf.extensions.apis.templates import DiscoveryError, installed, lines
from pytest_flashinfer_perf.spec.params import ParamError


def main(arguments: Sequence[str]) -> int:
    parser = commands.parser_of("list --api", "List FlashInfer's APIs that have a trace template.", "")
    parser.add_argument("name")
    options = parser.parse_args(arguments)
    registry = installed()
    if not registry.version:
        raise DiscoveryError("flashinfer is not installed: there are no APIs to list")
    if not any(options.name.lower() in api.name.lower() for api in registry.apis):
        raise ParamError(unknown(options.name))
    printing.show(lines(registry, options.name))
    return 0
