"""What is generated from the types of a row and of a report of the tuner: python tools/row_documents.py

It writes the JSON Schemas of `extra_info` and of `tune-report --json` into the package, and the table of fields into
docs/row.md.
"""

import collections.abc
import json
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any

from pytest_flashinfer_perf import loading
from pytest_flashinfer_perf.files import write_whole
from pytest_flashinfer_perf.rows.fields import LARGEST, types_of
from pytest_flashinfer_perf.rows.parts import DECLARED
from pytest_flashinfer_perf.rows.row import PARTS
from pytest_flashinfer_perf.rows.run_file import SCHEMA

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "row.md"
PACKAGE = ROOT / "pytest_flashinfer_perf"
FILE = PACKAGE / "rows" / "extra_info.schema.json"
TUNE_REPORT = PACKAGE / "extensions" / "tuner" / "tune_report.schema.json"
DIALECT = "https://json-schema.org/draft/2020-12/schema"
BEGIN, END = "<!-- fields -->\n", "<!-- end of fields -->\n"
NAMES: dict[Any, str] = {str: "string", bool: "boolean", int: "integer", float: "number", types.NoneType: "null"}


def tables() -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The parts of a row: what each is, and the types of its fields."""
    for part in PARTS.values():
        yield part.__doc__.strip().removesuffix("."), types_of(part)
    loading.manager()
    if DECLARED:
        yield "What extensions add", DECLARED


def schema() -> dict[str, Any]:
    properties = {name: of_type(kind) for _, fields_of_part in tables() for name, kind in fields_of_part.items()}
    return {
        "$schema": DIALECT,
        "title": f"extra_info of a row of pytest-flashinfer-perf, schema {SCHEMA}",
        "description": "A routine, a data set or a test may add fields of its own.",
        "type": "object",
        "properties": properties,
        "required": sorted(properties),
    }


def tune_report() -> dict[str, Any]:
    from pytest_flashinfer_perf.extensions.tuner import results
    from pytest_flashinfer_perf.extensions.tuner.results import Report

    return {"$schema": DIALECT, "title": results.FORMAT, **of_dataclass(Report)}


def of_type(kind: Any) -> dict[str, Any]:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return {}
    if origin is typing.Annotated:
        return {**of_type(arguments[0]), "description": arguments[1]}
    if kind is int:
        return {"type": NAMES[kind], "minimum": -LARGEST, "maximum": LARGEST}
    if kind in NAMES:
        return {"type": NAMES[kind]}
    return of_dataclass(kind) if is_dataclass(kind) else COMPOUND[origin](arguments)


def of_dataclass(kind: Any) -> dict[str, Any]:
    properties = {name: of_type(one) for name, one in types_of(kind).items()}
    required = [f.name for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING]
    return {"type": "object", "properties": properties, "required": required}


COMPOUND: dict[Any, Callable[[Any], dict[str, Any]]] = {
    typing.Literal: lambda values: {"enum": list(values)},
    typing.Union: lambda kinds: {"anyOf": list(map(of_type, kinds))},
    types.UnionType: lambda kinds: {"anyOf": list(map(of_type, kinds))},
    tuple: lambda kinds: {"type": "array", "items": of_type(kinds[0])},
    collections.abc.Mapping: lambda kinds: {"type": "object", "additionalProperties": of_type(kinds[1])},
}


def table() -> Iterator[str]:
    for title, fields_of_part in tables():
        yield f"### {title}\n\n| field | meaning |\n|---|---|\n"
        for name, kind in fields_of_part.items():
            yield f"| `{name}` | {of_type(kind)['description']} |\n"
        yield "\n"


def page(text: str) -> str:
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}{''.join(table())}{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    write_whole(FILE, json.dumps(schema(), indent=1) + "\n")
    write_whole(TUNE_REPORT, json.dumps(tune_report(), indent=1) + "\n")
    write_whole(PAGE, page(PAGE.read_text(encoding="utf-8")))
