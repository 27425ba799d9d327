"""Check a sampler: its tokens must be possible, and as frequent as their probabilities."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from pytest_flashinfer_perf.api import check
from pytest_flashinfer_perf.extensions.apis.call_inputs import CallInputs
from pytest_flashinfer_perf.extensions.apis.templates import Api

# Of right samplers one in a million is called wrong.
MOST = math.sqrt(math.log(2e6) / 2)
ALLOWED = check.Tolerance(0.0, 0.0, math.inf, absolute=MOST)
ROUNDING = 1e-5  # sums of fp32 may end before or after the last token that is kept


def is_sampler(api: Api) -> bool:
    """Whether it answers one token for each row of probabilities or logits."""
    return [output.name for output in api.outputs] == ["samples"] and _distribution_argument(api) is not None


def _distribution_argument(api: Api) -> str | None:
    arguments = (one.argument for one in api.inputs)
    return next((name for name in arguments if name in ("probs", "logits")), None)


def drawn(api: Api, inputs: CallInputs) -> dict[str, Tensor]:
    """Torch's own sampler: some templates' references take the likeliest token instead of a drawn one."""
    return {api.outputs[0].name: torch.multinomial(probabilities(api, inputs.all), 1)[:, 0].int()}


def probabilities(api: Api, arguments: Mapping[str, Any]) -> Tensor:
    """The distribution of each row once all filters are applied in the API's own order: k, p, then min p."""
    name = _distribution_argument(api) or ""
    values = arguments[name].double()
    kept = values.softmax(-1) if name == "logits" else values / values.sum(-1, keepdim=True)
    if _argument(arguments, "top_k") is not None:
        count = _column(arguments, "top_k", kept).long().clamp(1, kept.shape[-1])
        kept = kept.where(kept >= kept.sort(-1, descending=True).values.gather(-1, count - 1), 0.0)
    if _argument(arguments, "top_p") is not None:
        kept = _nucleus(kept, _column(arguments, "top_p", kept))
    if _argument(arguments, "min_p") is not None:
        least = (1 - ROUNDING) * _column(arguments, "min_p", kept) * kept.amax(-1, keepdim=True)
        kept = kept.where(kept >= least, 0.0)
    normal: Tensor = kept / kept.sum(-1, keepdim=True)
    return normal


def undecided(arguments: Mapping[str, Any], values: Tensor) -> Tensor:
    """Which values the rounding of a sum keeps or drops at the end of a nucleus."""
    ordered, order = values.double().sort(-1, descending=True)
    before = ordered.cumsum(-1) - ordered
    close = (before - _column(arguments, "top_p", values)).abs() < ROUNDING
    return torch.zeros_like(close).scatter(-1, order, close)


def _argument(arguments: Mapping[str, Any], name: str) -> Any:
    """The argument under any of its names: a number for all rows, or one for each."""
    names = (name, f"{name}_arr", f"maybe_{name}_arr")
    return next((arguments[one] for one in names if arguments.get(one) is not None), None)


def _column(arguments: Mapping[str, Any], name: str, like: Tensor) -> Tensor:
    values = torch.as_tensor(_argument(arguments, name), device=like.device).double()
    return values.reshape(-1, 1).expand(len(like), 1)


def _nucleus(values: Tensor, share: Tensor) -> Tensor:
    values = values / values.sum(-1, keepdim=True)
    ordered = values.sort(-1, descending=True).values
    kept = ordered.cumsum(-1) - ordered < share + ROUNDING
    least = ordered.where(kept, math.inf).amin(-1, keepdim=True)
    return values.where(values >= least, 0.0)


def excess(samples: Tensor, expected: Tensor) -> Tensor:
    """How far the tokens are from these probabilities, near 1 where they are right; infinite where one is impossible.

    The place of a token in its row's cumulated probabilities, drawn within the token's own share, is uniform: that of
    all rows together is compared with a uniform one (Kolmogorov and Smirnov's distance, times the root of their count).
    """
    tokens, width = samples.reshape(-1).long(), expected.shape[-1]
    if len(tokens) != len(expected) or bool(((tokens < 0) | (tokens >= width)).any()):
        return torch.tensor([math.inf])
    own = expected.gather(-1, tokens[:, None])[:, 0]
    if not bool((own > 0).all()):
        return torch.tensor([math.inf])
    until = expected.cumsum(-1).gather(-1, tokens[:, None])[:, 0]
    drawn = torch.rand(len(tokens), dtype=torch.float64, generator=torch.Generator().manual_seed(len(tokens)))
    places = (until - own * drawn.to(own.device)).sort().values
    count = len(places)
    steps = torch.arange(1, count + 1, dtype=torch.float64, device=places.device) / count
    apart = torch.maximum((steps - places).abs().max(), (places - steps + 1 / count).abs().max())
    return (apart * math.sqrt(count)).reshape(1).float().cpu()
