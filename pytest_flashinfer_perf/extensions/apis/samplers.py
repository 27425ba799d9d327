"""Check a sampler: its tokens must be possible, and as frequent as their probabilities."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from pytest_flashinfer_perf.api import check
from pytest_flashinfer_perf.extensions.apis.given import Given
from pytest_flashinfer_perf.extensions.apis.templates import Api

# Of right samplers one in a million is called wrong.
MOST = math.sqrt(math.log(2e6) / 2)
ALLOWED = check.Tolerance(0.0, 0.0, math.inf, absolute=MOST)
ROUNDING = 1e-5  # sums of fp32 may end before or after the last token that is kept


def is_sampler(api: Api) -> bool:
    """One token for each row of probabilities or logits, or a chain of them that a draft proposes."""
    tokens = [output.name for output in api.outputs] == ["samples"] and _distribution_argument(api) is not None
    return tokens or is_speculative(api)


def is_speculative(api: Api) -> bool:
    return {"draft_probs", "draft_token_ids", "target_probs"} <= {one.argument for one in api.inputs}


def _distribution_argument(api: Api) -> str | None:
    arguments = (one.argument for one in api.inputs)
    return next((name for name in arguments if name in ("probs", "logits")), None)


def drawn(api: Api, given: Given) -> dict[str, Tensor]:
    """Torch's own sampler: some templates' references take the likeliest token instead of a drawn one."""
    expected = probabilities(api, given.all)
    return {api.outputs[0].name: tokens(expected, proposed(api, given.all))}


def proposed(api: Api, arguments: Mapping[str, Any]) -> Tensor | None:
    """A draft's tokens, each of which is accepted or replaced; what follows a replaced one is dropped."""
    return arguments["draft_token_ids"] if is_speculative(api) else None


def tokens(expected: Tensor, drafts: Tensor | None = None) -> Tensor:
    one = torch.multinomial(expected.reshape(-1, expected.shape[-1]), 1).reshape(expected.shape[:-1]).int()
    return one if drafts is None else one.where(_reached(one, drafts), -1)


def _reached(samples: Tensor, drafts: Tensor) -> Tensor:
    """The places whose tokens before are all the draft's."""
    accepted = (samples[:, :-1] == drafts).long().cumprod(-1).bool()
    return torch.cat([torch.ones_like(accepted[:, :1]), accepted], -1)


def probabilities(api: Api, arguments: Mapping[str, Any]) -> Tensor:
    """What is sampled from, row by row, once all filters are applied in the API's own order: k, p, then min p."""
    if is_speculative(api):
        return _of_chain(arguments["draft_probs"].double(), arguments["draft_token_ids"], arguments["target_probs"])
    name = _distribution_argument(api) or ""
    values = arguments[name].double()
    kept = values.softmax(-1) if name == "logits" else values / values.sum(-1, keepdim=True)
    if _given(arguments, "top_k") is not None:
        count = _column(arguments, "top_k", kept).long().clamp(1, kept.shape[-1])
        kept = kept.where(kept >= kept.sort(-1, descending=True).values.gather(-1, count - 1), 0.0)
    if _given(arguments, "top_p") is not None:
        kept = _nucleus(kept, _column(arguments, "top_p", kept))
    if _given(arguments, "min_p") is not None:
        least = (1 - ROUNDING) * _column(arguments, "min_p", kept) * kept.amax(-1, keepdim=True)
        kept = kept.where(kept >= least, 0.0)
    normal: Tensor = kept / kept.sum(-1, keepdim=True)
    return normal


def _of_chain(draft: Tensor, ids: Tensor, target: Tensor) -> Tensor:
    """Of each place: the draft's token as often as the target has it, else what the target has more of."""
    wanted, last = target[:, :-1].double(), target[:, -1:].double()
    chosen = ids.long().unsqueeze(-1)
    accepted = (wanted.gather(-1, chosen) / draft.gather(-1, chosen)).clamp(max=1.0)
    more = (wanted - draft).clamp(min=0.0)
    kept = more / more.sum(-1, keepdim=True).clamp(min=1e-30) * (1 - accepted)
    return torch.cat([kept.scatter_add(-1, chosen, accepted), last / last.sum(-1, keepdim=True)], 1)


def undecided(arguments: Mapping[str, Any], values: Tensor) -> Tensor:
    """Which values the rounding of a sum keeps or drops at the end of a nucleus."""
    ordered, order = values.double().sort(-1, descending=True)
    before = ordered.cumsum(-1) - ordered
    close = (before - _column(arguments, "top_p", values)).abs() < ROUNDING
    return torch.zeros_like(close).scatter(-1, order, close)


def _given(arguments: Mapping[str, Any], name: str) -> Any:
    """Under one of two names: a number for all rows, or one for each."""
    names = (name, f"{name}_arr", f"maybe_{name}_arr")
    return next((arguments[one] for one in names if arguments.get(one) is not None), None)


def _column(arguments: Mapping[str, Any], name: str, like: Tensor) -> Tensor:
    given = torch.as_tensor(_given(arguments, name), device=like.device).double()
    return given.reshape(-1, 1).expand(len(like), 1)


def _nucleus(values: Tensor, share: Tensor) -> Tensor:
    values = values / values.sum(-1, keepdim=True)
    ordered = values.sort(-1, descending=True).values
    kept = ordered.cumsum(-1) - ordered < share + ROUNDING
    least = ordered.where(kept, math.inf).amin(-1, keepdim=True)
    return values.where(values >= least, 0.0)


def excess(samples: Tensor, expected: Tensor, drafts: Tensor | None = None) -> Tensor:
    """How far the tokens are from these probabilities, near 1 where they are right; infinite where one is impossible.

    The place of a token in its row's cumulated probabilities, drawn within the token's own share, is uniform: that of
    all rows together is compared with a uniform one (Kolmogorov and Smirnov's distance, times the root of their count).
    """
    if drafts is not None:
        reached = _reached(samples, drafts)
        if bool((samples[~reached] != -1).any()):
            return torch.tensor([math.inf])
        samples, expected = samples[reached], expected[reached]
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
