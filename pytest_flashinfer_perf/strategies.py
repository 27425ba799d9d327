"""Hypothesis strategies over Params, derived from what each field declares: draw shapes, never tensor data."""

from __future__ import annotations

from typing import Any, TypeVar

from hypothesis import strategies as st

from pytest_flashinfer_perf.params import Field, ParamError, Params, Value, fields_of

P = TypeVar("P", bound=Params)


def params_of(params: type[P]) -> st.SearchStrategy[P]:
    """Valid Params, from the values that their fields say are worth trying; simple ones come first."""
    fields = {field.name: _values(field) for field in fields_of(params)}
    return st.fixed_dictionaries(fields).map(lambda drawn: _valid(params, drawn)).filter(bool).map(_present)


def _values(field: Field) -> st.SearchStrategy[Value]:
    if field.type is bool:
        return st.booleans()
    drawn = st.sampled_from(field.flag.draw) if field.flag.draw else st.just(field.default)
    return st.none() | drawn if field.optional and field.default is None else drawn


def _valid(params: type[P], drawn: dict[str, Any]) -> P | None:
    try:
        return params(**drawn)
    except ParamError:
        return None


def _present(made: P | None) -> P:
    assert made is not None
    return made
