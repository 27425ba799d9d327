"""`flashinfer-perf list --api`: the templates of the installed FlashInfer, and why some cannot be measured."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_flashinfer_perf.api import commands, printing
from pytest_flashinfer_perf.extensions.apis.known import unknown
from pytest_flashinfer_perf.extensions.apis.templates import DiscoveryError, installed, lines
from pytest_flashinfer_perf.spec.params import ParamError


def main(arguments: Sequence[str]) -> int:
    parser = commands.parser_of("list --api", "List FlashInfer's APIs that have a trace template.", "")
    parser.add_argument("name")
    known = parser.parse_args(arguments)
    found = installed()
    if not found.version:
        raise DiscoveryError("flashinfer is not installed: there are no APIs to list")
    asked_for = [api for api in found.apis if known.name.lower() in api.name.lower()]
    if not asked_for:
        raise ParamError(unknown(known.name))
    printing.show(lines(found, known.name))
    return 0
