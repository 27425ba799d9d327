"""The axes of a template as Params: a flag for each, with small sizes for tests and sizes of models.

An axis with a default keeps it. Those without one are sized by their names (`special_cases.COUNTS`), and in the other
tiers by the models whose layers have such axes.
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from pytest_flashinfer_perf.extensions.apis import special_cases
from pytest_flashinfer_perf.extensions.apis.special_cases import special
from pytest_flashinfer_perf.extensions.apis.templates import Api, Axis
from pytest_flashinfer_perf.routines import layers
from pytest_flashinfer_perf.routines.published_models import GroupedHeads, PublishedModel
from pytest_flashinfer_perf.spec import Model, Presets, Shape, Spread
from pytest_flashinfer_perf.spec.dtypes import HALF
from pytest_flashinfer_perf.spec.params import Fault, Params, Value, flag

# How many, of what a call is given any number of: in the smoke tier, and in the default tier.
SMOKE, USUAL = 16, (64, 1024)
CACHED = (4, (16, 64))  # requests, which the references of what reads a cache answer one by one
SAMPLED = (64, (1024,))  # a distribution is seen in many rows only
DRAWN = (1, 2, 3, 16, 33)
FLOATS = (*HALF, "float32")
BESIDE = ("dtype", "arguments")
Sizes = dict[str, Any]


@dataclass(frozen=True)
class ApiParams(Params):
    """The base of all templates' parameters: another type of the inputs, and additional arguments of the call."""

    dtype: str | None = flag("type of the first input and of all alike", default=None, choices=FLOATS, draw=(None,))
    arguments: str | None = flag("further arguments of the call: name=value,name=value", default=None, draw=(None,))

    def faults(self) -> Iterator[Fault]:
        if self.arguments and not all(re.fullmatch(r"\w+=[\w.+-]+", word) for word in self.arguments.split(",")):
            yield "arguments", f"must be name=value,name=value, got {self.arguments!r}"

    @property
    def axes(self) -> Sizes:
        return {name: value for name, value in self.as_dict().items() if name not in BESIDE}

    @property
    def further_arguments(self) -> dict[str, bool | int | float | str]:
        """The further arguments, as Python has them."""
        words = (word.split("=", 1) for word in (self.arguments or "").split(",") if word)
        return {name: _value(word) for name, word in words}

    def slug(self, covered: Mapping[str, Value] | None = None) -> str:
        return super().slug(covered) or "default"


def _value(word: str) -> bool | int | float | str:
    if word in ("True", "False"):
        return word == "True"
    for number in (int, float):
        with suppress(ValueError):
            return number(word)
    return word


def params_of(api: Api) -> type[ApiParams]:
    letters = _letters(api.axes)
    fields = [(axis.name, _type(axis), _flag(axis, letters[axis.name], api)) for axis in api.axes]
    params = dataclasses.make_dataclass("_".join(api.label.split()), fields, bases=(ApiParams,), frozen=True)
    params.__module__ = __name__
    return params


def _type(axis: Axis) -> type:
    return int if axis.default is None else type(axis.default)


def _flag(axis: Axis, letter: str, api: Api) -> Any:
    default = dataclasses.MISSING if axis.default is None else axis.default
    drawn = DRAWN if axis.default is None else (axis.default,)
    sentence = axis.help or axis.name.replace("_", " ")
    names = {one.name for one in api.axes}
    counts_rows = axis.name in special_cases.ROWS and len(names & set(special_cases.ROWS)) == 1
    others = (*(special_cases.ROWS if counts_rows else ()), *special_cases.SYNONYMS.get(axis.name, ()))
    spellings = tuple(dict.fromkeys((axis.name, *(other for other in others if other not in names))))
    return flag(sentence, default=default, letter=letter, draw=drawn, spellings=spellings)


def _letters(axes: Iterable[Axis]) -> dict[str, str]:
    """The initials, or the whole name where two have the same ones."""
    short = {axis.name: axis.short or "".join(word[0] for word in axis.name.split("_") if word) for axis in axes}
    count = Counter(letter.lower() for letter in short.values())
    return {name: letter if count[letter.lower()] == 1 else f"{name}=" for name, letter in short.items()}


def of_tier(api: Api, params: type[ApiParams], tier: str) -> Iterator[Shape[Any]]:
    """The template's sizes of a tier; those of `default` are joined by those of one model."""
    smoke = tier == "smoke"
    own = {**_small_experts(api), **special(api).smoke} if smoke else special(api).usual
    each = (params(**{**counts, **_one_token_each(api, counts), **own}) for counts in _counts(api, smoke=smoke))
    yield from map(Shape, dict.fromkeys(each))
    if tier == "default" and (of_models := presets(api)):
        yield from of_model(api, params, of_models("llama-3.1-70b"))


def of_model(api: Api, params: type[ApiParams], model: Model) -> Iterator[Shape[Any]]:
    for counts in _counts(api, smoke=False):
        yield Shape(params(**{**counts, **_one_token_each(api, counts), **model.parameters}), model)


def _counts(api: Api, *, smoke: bool) -> list[Sizes]:
    """Sizes for all axes without a default."""
    open_axes = [axis.name for axis in api.axes if axis.default is None]
    cached = special_cases.OF_CACHES & {axis.name for axis in api.axes} and api.family not in special_cases.ROW_BY_ROW
    sampled = any(output.name == "samples" for output in api.outputs)
    usual = SAMPLED if sampled else CACHED if cached else (SMOKE, USUAL)
    counts = {name: special_cases.COUNTS.get(name, usual) for name in open_axes}
    if smoke:
        return [{name: first for name, (first, _) in counts.items()}]
    most = max((len(usual) for _, usual in counts.values()), default=1)
    return [{name: usual[min(nth, len(usual) - 1)] for name, (_, usual) in counts.items()} for nth in range(most)]


def _one_token_each(api: Api, counts: Sizes) -> Sizes:
    """One token for each request of a decoding step: more tokens are speculative, and need a mask."""
    has_both = {"num_tokens", "batch_size"} <= {axis.name for axis in api.axes}
    return {"batch_size": counts["num_tokens"]} if has_both and api.family == "decode" else {}


def _small_experts(api: Api) -> Sizes:
    names = {axis.name for axis in api.axes}
    experts = names & {"num_experts", "num_routed_experts"}
    wide = {"num_experts", "hidden_size"} <= names or "num_routed_experts" in names
    return {name: size for name, size in special_cases.SMALL_EXPERTS.items() if experts and wide and name in names}


def presets(api: Api) -> Presets[Any] | None:
    """Models that settle some of the API's axes; none where its axes are of no model's layer."""
    settles = partial(_settled, api)
    fitting = {name: model for name, model in layers.projections.layers.items() if settles(model, Spread())}
    return Presets(fitting, settles) if fitting and not _small_experts(api) else None


def _settled(api: Api, model: PublishedModel, over: Spread) -> Sizes:
    """A grouped-query model's heads; of a latent one, its widths alone."""
    sizes, here = dict(_widths(api, model, over)), model.heads.part(over.tp)
    if isinstance(here, GroupedHeads):
        sizes |= {
            **dict.fromkeys(("num_qo_heads", "num_q_heads"), here.heads),
            **dict.fromkeys(("num_kv_heads", "num_k_heads"), here.kv_heads),
            **dict.fromkeys(("head_dim", "head_size"), here.head_dim),
            "num_q_heads_x_head_size": here.heads * here.head_dim,
            "num_k_heads_x_head_size": here.kv_heads * here.head_dim,
        }
    names = {axis.name for axis in api.axes}
    return {name: size for name, size in sizes.items() if name in names}


def _widths(api: Api, model: PublishedModel, over: Spread) -> Iterator[tuple[str, int]]:
    if api.family == "activation":  # its `hidden_size` is that of both halves
        if model.width is not None:
            yield "hidden_size", 2 * model.width // over.tp
        return
    yield "hidden_size", model.hidden
    yield "vocab_size", model.vocabulary // over.tp
