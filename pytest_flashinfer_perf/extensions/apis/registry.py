"""A program that imports FlashInfer and prints its trace templates as JSON."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import inspect
import io
import json
import re
import sys
import typing
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from pytest_flashinfer_perf.api import capability, errors
from pytest_flashinfer_perf.extensions.apis.by_hand import completed
from pytest_flashinfer_perf.extensions.apis.special_cases import ONE_MORE, UNREAD
from pytest_flashinfer_perf.extensions.apis.templates import Api, Axis, Declared, Registry

DECORATED = re.compile(r"flashinfer_api\s*\([^)]*trace\s*=")
BESIDE_AXES = ("device", "seed")
ONLY = "flashinfer"  # the backend of an API that has no choice


def describe() -> Registry:
    root = Path(importlib.util.find_spec("flashinfer").origin or "").parent  # type: ignore[union-attr]
    flashinfer = importlib.import_module("flashinfer")
    failed = _import_decorated(root)
    entries = registered()
    count = Counter(path for path, _ in entries)
    each = (described(*key, entry, count[key[0]]) for key, entry in entries.items())
    return Registry(flashinfer.__version__, tuple(sorted(each, key=lambda api: api.name)), failed)


def registered() -> dict[tuple[str, str], tuple[Callable[..., Any], Any]]:
    """Functions and templates by path and label, as far as their modules are imported; what is by hand comes first."""
    theirs = flashinfers()
    return {**theirs, **dict(completed(theirs, located))}


def flashinfers() -> dict[tuple[str, str], tuple[Callable[..., Any], Any]]:
    """FlashInfer's own alone."""
    listed = importlib.import_module("flashinfer.api_logging")._TRACE_REGISTRY  # noqa: SLF001 - nothing public lists it
    return {(f"{function.__module__}.{function.__qualname__}", label): (function, t) for function, t, label in listed}


def _import_decorated(root: Path) -> dict[str, str]:
    """A template is registered when the module that it decorates is imported."""
    failed = {}
    for path in sorted(root.rglob("*.py")):
        if DECORATED.search(path.read_text(encoding="utf-8", errors="replace")):
            name = ".".join(("flashinfer", *path.relative_to(root).with_suffix("").parts)).removesuffix(".__init__")
            try:
                importlib.import_module(name)
            except Exception as error:  # noqa: BLE001 - whatever its import raises is the reason
                failed[name] = errors.in_one_line(error)
    return failed


def described(path: str, label: str, entry: tuple[Callable[..., Any], Any], count: int) -> Api:
    function, template = entry
    api = Api(path, label, path.split(".")[1], template.op_type, templates=count)
    absent = [what for what in ("init", "reference") if getattr(template, what, None) is None]
    if absent:
        return replace(api, missing=f"its template has no {' and no '.join(absent)}")
    axes = tuple(_axes(template))
    required = [name for name, default in _arguments(template.init).items() if default is inspect.Parameter.empty]
    read = {axis.name for axis in axes}
    return replace(
        api,
        axes=axes,
        unused=tuple(name for name in required if name not in read),
        inputs=tuple(_declared(template.inputs)),
        outputs=tuple(_declared(template.outputs)),
        backends=tuple(_backends(path)) or (ONLY,),
        arguments=tuple(inspect.signature(function).parameters),
    )


def _arguments(init: Callable[..., Any]) -> dict[str, Any]:
    """The parameters of a function, and of the one to which it passes `**kwargs` on."""
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    parameters = inspect.signature(init).parameters.values()
    own = {p.name: p.default for p in parameters if p.kind in named and p.name not in BESIDE_AXES}
    passed_on = any(p.kind is p.VAR_KEYWORD for p in parameters)
    others = map(_arguments, getattr(init, "_trace_init_dependencies", ())) if passed_on else ()
    return {**{name: default for one in others for name, default in one.items()}, **own}


def _axes(template: Any) -> Iterator[Axis]:
    """A default of 0 is worked out by `init` from the other axes."""
    for name, default in _arguments(template.init).items():
        required = default is inspect.Parameter.empty
        value = None if required else default
        numeric = isinstance(value, (int, float)) and not isinstance(value, bool)
        if name not in UNREAD and not name.endswith(ONE_MORE) and (required or (numeric and value != 0)):
            marker = template.axes.get(name)
            sentence = " ".join((getattr(marker, "description", "") or "").split())
            yield Axis(name, value, sentence, getattr(marker, "abbrev", "") or "")


def _declared(described: dict[str, Any]) -> Iterator[Declared]:
    for name, one in described.items():
        dims = tuple(getattr(one, "dim_names", ()))
        argument, element = getattr(one, "param", None) or name, getattr(one, "tuple_idx", None)
        yield Declared(name, argument, dims, getattr(one, "dtype", None) or "", bool(one.optional), element)


def _backends(path: str) -> Iterator[str]:
    """The backends that an argument of the API or of its wrapper's constructor lists, else its default."""
    function = located(path)
    owner = located(path.rpartition(".")[0])
    for callee in (function, getattr(owner, "__init__", None) if inspect.isclass(owner) else None):
        parameter = inspect.signature(callee).parameters.get("backend") if callee else None
        if parameter is not None:
            decorated = getattr(function, "has_backend_choices", bool)()
            annotated = [name for name in capability.HARDWARE if decorated and function.is_backend_supported(name)]
            hint = typing.get_type_hints(callee).get("backend") if isinstance(parameter.annotation, str) else None
            listed = [name for name in typing.get_args(hint or parameter.annotation) if isinstance(name, str)]
            usual = [parameter.default] if isinstance(parameter.default, str) else []
            yield from dict.fromkeys(listed or [*usual, *annotated])
            return


def located(path: str) -> Any:
    """The module, class or function at this path."""
    parts = path.split(".")
    for end in range(len(parts), 0, -1):
        with contextlib.suppress(ModuleNotFoundError):
            target = importlib.import_module(".".join(parts[:end]))
            for name in parts[end:]:
                target = getattr(target, name)
            return target
    raise ModuleNotFoundError(path)


def main() -> None:
    warnings.simplefilter("ignore")
    with contextlib.redirect_stdout(io.StringIO()):  # what an import prints is no JSON
        registry = describe()
    json.dump(asdict(registry), sys.stdout)
