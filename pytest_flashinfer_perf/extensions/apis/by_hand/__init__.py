"""Templates by hand, for APIs whose own template lacks or mistakes something, and for APIs that have none.

A template here has the form of FlashInfer's: `init` makes the arguments of a call, `reference` answers it. What is
listed for an API that has a template replaces only what it names; the rest stays FlashInfer's. `words` are flags whose
values are no sizes: names to choose from, or none for a switch and for a number that may be 0.
"""

from __future__ import annotations

import copy
import functools
import importlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch

from pytest_flashinfer_perf.api import capability

Function = Callable[..., Any]
Key = tuple[str, str]  # an API's path and a template's label
MODULES = ("attention", "mended", "norm", "recurrent")


@dataclass(frozen=True)
class Output:
    """A tensor of the answer, with the attributes by which FlashInfer's templates describe one."""

    dim_names: tuple[str, ...] = ()
    dtype: str = ""
    param: str = ""  # the argument that it is written to
    optional: bool = False


@dataclass
class Template:
    """A template of an API that has none, or of another use of an API."""

    op_type: str
    init: Function
    reference: Function
    outputs: Mapping[str, Output]
    words: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    inputs: Mapping[str, Any] = field(default_factory=dict)
    axes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Mended:
    """What replaces a part of FlashInfer's template, or is made `around` its own `init` or reference."""

    init: Function | None = None
    reference: Function | None = None
    around_init: Callable[[Function], Function] | None = None
    around_reference: Callable[[Function], Function] | None = None
    outputs: Mapping[str, Output] = field(default_factory=dict)
    words: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def of(self, template: Any) -> Any:
        made = copy.copy(template)
        made.words, made.outputs = self.words, self.outputs or template.outputs
        made.init, made.reference = self.init or template.init, self.reference or template.reference
        if self.around_init:
            made.init = self.around_init(template.init)
            made.init._trace_init_dependencies = (template.init,)  # noqa: SLF001 - so a template says what it passes on
        if self.around_reference:
            made.reference = self.around_reference(template.reference)
        return made


def sized(**axes: Any) -> Callable[[Callable[[Any, str], dict[str, Any]]], Function]:
    """Make an `init` of a function of sizes and a device: these are its axes, None for one that must be given."""
    empty, by_name = inspect.Parameter.empty, inspect.Parameter.KEYWORD_ONLY
    known = {name: empty if default is None else default for name, default in axes.items()}
    parameters = [inspect.Parameter(name, by_name, default=default) for name, default in known.items()]
    signature = inspect.Signature(parameters)

    def decorated(make: Callable[[Any, str], dict[str, Any]]) -> Function:
        @functools.wraps(make)
        def init(*, device: str = "cuda", seed: int = 0, **sizes: Any) -> dict[str, Any]:
            bound = signature.bind(**sizes)
            bound.apply_defaults()
            torch.manual_seed(seed)
            return make(SimpleNamespace(**bound.arguments), device)

        init.__signature__ = signature  # type: ignore[attr-defined]
        return init

    return decorated


def by_hand() -> dict[str, Template | Mended]:
    """All of them by their API's path, with a colon and a label where that is not the path's last name."""
    found: dict[str, Template | Mended] = {}
    for name in MODULES:
        found |= importlib.import_module(f"{__name__}.{name}").TEMPLATES
    return found


def completed(
    known: Mapping[Key, tuple[Function, Any]], located: Callable[[str], Any]
) -> Iterator[tuple[Key, tuple[Function, Any]]]:
    """The templates by hand that this FlashInfer has an API for, which takes what they write to."""
    for name, ours in by_hand().items():
        path, _, label = name.partition(":")
        labels = [own for at, own in known if at == path and label in ("", own)]
        if isinstance(ours, Mended):
            for own in labels:
                function, template = known[path, own]
                yield (path, own), (function, ours.of(template))
        else:
            with suppress(ImportError, AttributeError):  # an API of a newer FlashInfer
                function = located(path)
                if all(capability.accepts(function, one.param) for one in ours.outputs.values() if one.param):
                    yield (path, label or path.rpartition(".")[2]), (function, ours)
