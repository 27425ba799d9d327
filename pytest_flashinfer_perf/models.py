"""Model presets: a model's name and its tensor parallelism give the shape of its layers on one GPU."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_flashinfer_perf.routine import Model


@dataclass(frozen=True)
class Attention:
    """Grouped-query attention as the model's configuration states it."""

    num_qo_heads: int
    num_kv_heads: int
    head_dim: int


ATTENTION = {
    "llama-3.1-8b": Attention(32, 8, 128),
    "llama-3.1-70b": Attention(64, 8, 128),
    "llama-3.1-405b": Attention(128, 8, 128),
    "qwen3-32b": Attention(64, 8, 128),
    "gpt-oss-120b": Attention(64, 8, 64),
}


def attention(name: str, tp: int = 1) -> Model:
    """The heads that one of `tp` GPUs holds; key and value heads are replicated where there are fewer than GPUs."""
    whole = ATTENTION[name]
    return Model(
        name if tp == 1 else f"{name}-tp{tp}",
        {
            "num_qo_heads": whole.num_qo_heads // tp,
            "num_kv_heads": max(1, whole.num_kv_heads // tp),
            "head_dim_qk": whole.head_dim,
            "head_dim_vo": whole.head_dim,
        },
    )
