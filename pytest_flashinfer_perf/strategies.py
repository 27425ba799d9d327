"""Hypothesis strategies for Params, from what their fields declare; tensors are not drawn.

Only tests and searches import this module: hypothesis is an extra.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

from hypothesis import strategies as st

from pytest_flashinfer_perf.routines import all_routines
from pytest_flashinfer_perf.spec.case import routine_named
from pytest_flashinfer_perf.spec.params import Field, ParamError, Params, Value, fields_of
from pytest_flashinfer_perf.spec.routine import AnyRoutine

P = TypeVar("P", bound=Params)
Values = st.SearchStrategy[Value]


def params_of(params: type[P]) -> st.SearchStrategy[P]:
    """Small valid Params from the values that their fields declare; simple ones come first."""
    return _drawn(params, _small, {})


def strategies_for(routine: str | AnyRoutine, **fixed: Value) -> st.SearchStrategy[Any]:
    """Valid Params of a routine from small to large, often at the edges of tiles; fields may be fixed."""
    declared = routine_named(routine, all_routines()) if isinstance(routine, str) else routine
    return _drawn(declared.params, _sizes, fixed)


def _drawn(params: type[P], values: Callable[[Field], Values], fixed: Mapping[str, Value]) -> st.SearchStrategy[P]:
    fields = {f.name: st.just(fixed[f.name]) if f.name in fixed else values(f) for f in fields_of(params)}
    instances = st.fixed_dictionaries(fields).map(lambda drawn: _valid(params, {**params.fitted(drawn), **fixed}))
    return cast("st.SearchStrategy[P]", instances.filter(bool))


def _small(field: Field) -> Values:
    if field.type is bool:
        return st.booleans()
    drawn = st.sampled_from(field.flag.draw) if field.flag.draw else st.just(field.default)
    left_out = field.optional and field.default is None and None not in field.flag.draw
    return st.none() | drawn if left_out else drawn


def _sizes(field: Field) -> Values:
    """Values in ascending order, so that findings shrink to the smallest."""
    if field.flag.most is not None:
        return st.sampled_from(sizes(field))
    return st.sampled_from(field.flag.draw) if field.type is bool and field.flag.draw else _small(field)


def sizes(field: Field) -> list[int]:
    """Sizes of small problems, edges of tiles, and values in each octave: odd ones, and multiples of `step` twice."""
    least, most, step = field.flag.minimum or 0, field.flag.most or 0, field.flag.step
    small = [value for value in field.flag.draw if isinstance(value, int)]
    edges = [tile + by for tile in field.flag.tiles for by in (-1, 0, 1)]
    quarters = [(1 << octave) * quarter // 4 for octave in range(most.bit_length()) for quarter in (4, 5, 6, 7)]
    in_steps, odd = [-(-size // step) * step for size in quarters], [size + size // 8 | 1 for size in quarters]
    each, again = {least, *range(1, 5), most, *small, *edges, *in_steps, *odd}, set(in_steps) if step > 1 else set()
    return sorted(v for v in (*each, *again) if least <= v <= most)


def _valid(params: type[P], drawn: dict[str, Any]) -> P | None:
    try:
        return params(**drawn)
    except ParamError:
        return None
