"""RoPE with quantisation: heads that are turned whole, and caches of both layouts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pytest_flashinfer_perf.routines.derived.by_hand import Mended

Init = Callable[..., dict[str, Any]]


def _turned_whole(usual: Init) -> Init:
    """Without a part that is not turned, the call is given None for it."""

    def init(**axes: Any) -> dict[str, Any]:
        made = usual(**axes)
        return made if axes["no_rope_dim"] else {**made, "q_nope": None, "k_nope": None}

    return init


def _into_caches(usual: Init) -> Init:
    whole = _turned_whole(usual)

    def init(*, kv_layout: str = "NHD", **axes: Any) -> dict[str, Any]:
        made = whole(**axes)
        by_heads = tuple(side.transpose(1, 2).contiguous() for side in made["paged_kv_cache"])
        return {**made, "paged_kv_cache": by_heads, "kv_layout": kv_layout} if kv_layout == "HND" else made

    return init


WHOLE = {"no_rope_dim": ()}
TEMPLATES = {
    "flashinfer.rope.rope_quantize_fp8": Mended(around_init=_turned_whole, words=WHOLE),
    "flashinfer.rope.mla_rope_quantize_fp8": Mended(around_init=_turned_whole, words=WHOLE),
    "flashinfer.rope.rope_quantize_fp8_append_paged_kv_cache": Mended(
        around_init=_into_caches, words={**WHOLE, "kv_layout": ("NHD", "HND")}
    ),
}
