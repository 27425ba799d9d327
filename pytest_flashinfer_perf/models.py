"""Model presets: a model's name and how it is spread over GPUs give the shapes of its layers on one of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pytest_flashinfer_perf.params import ParamError
from pytest_flashinfer_perf.routine import Model


@dataclass(frozen=True)
class Attention:
    """Grouped-query attention as the model's configuration states it."""

    num_qo_heads: int
    num_kv_heads: int
    head_dim: int


@dataclass(frozen=True)
class Latent:
    """Multi-head latent attention: DeepSeek's sizes, which its descendants kept."""

    num_qo_heads: int
    kv_lora_rank: int = 512
    qk_nope_head_dim: int = 128
    qk_rope_head_dim: int = 64
    v_head_dim: int = 128


@dataclass(frozen=True)
class Dense:
    """The projections of a model whose feed-forward layers are dense."""

    attention: Attention
    hidden: int
    intermediate: int
    vocabulary: int

    @property
    def num_qo_heads(self) -> int:
        return self.attention.num_qo_heads


L = TypeVar("L", Attention, Latent, "Attention | Latent", Dense)


@dataclass(frozen=True)
class Presets(Generic[L]):
    """The models that have a kind of layer; called with a name, the parameters that it settles on one GPU."""

    layers: Mapping[str, L]
    settles: Callable[[L, int], dict[str, Any]]

    def __call__(self, name: str, tp: int = 1, dp: int = 1) -> Model:
        layer = self.layers[name]
        if layer.num_qo_heads % tp:
            raise ParamError(f"{name} has {layer.num_qo_heads} query heads, which {tp} GPUs cannot share evenly")
        spread = f"-tp{tp}" * (tp > 1) + f"-dp{dp}" * (dp > 1)
        return Model(name + spread, self.settles(layer, tp), dp)

    def everywhere(self) -> Iterator[Model]:
        """Each model on each usual number of GPUs."""
        for name, layer in self.layers.items():
            yield from (self(name, tp) for tp in (1, 2, 4, 8) if layer.num_qo_heads % tp == 0)


def _grouped(layer: Attention, tp: int) -> dict[str, Any]:
    """Key and value heads are replicated where there are fewer than GPUs."""
    return {
        "num_qo_heads": layer.num_qo_heads // tp,
        "num_kv_heads": max(1, layer.num_kv_heads // tp),
        "head_dim_qk": layer.head_dim,
        "head_dim_vo": layer.head_dim,
    }


def _absorbed(layer: Latent, tp: int) -> dict[str, Any]:
    """Decoding: the queries meet the latent cache itself."""
    return {
        "num_qo_heads": layer.num_qo_heads // tp,
        "head_dim_ckv": layer.kv_lora_rank,
        "head_dim_kpe": layer.qk_rope_head_dim,
    }


def _expanded(layer: Attention | Latent, tp: int) -> dict[str, Any]:
    """Prefilling: a latent layer's keys and values are expanded, a head for each query head."""
    if isinstance(layer, Attention):
        return _grouped(layer, tp)
    return {
        "num_qo_heads": layer.num_qo_heads // tp,
        "num_kv_heads": layer.num_qo_heads // tp,
        "head_dim_qk": layer.qk_nope_head_dim + layer.qk_rope_head_dim,
        "head_dim_vo": layer.v_head_dim,
    }


def _projections(layer: Dense, tp: int) -> dict[str, Any]:
    """Each one's n and k: first and last are split by columns, the inner ones by rows."""
    grouped = _grouped(layer.attention, tp)
    heads = grouped["num_qo_heads"] * layer.attention.head_dim
    keys = grouped["num_kv_heads"] * layer.attention.head_dim
    return {
        "qkv": {"n": heads + 2 * keys, "k": layer.hidden},
        "o": {"n": layer.hidden, "k": heads},
        "gate-up": {"n": 2 * layer.intermediate // tp, "k": layer.hidden},
        "down": {"n": layer.hidden, "k": layer.intermediate // tp},
        "lm-head": {"n": layer.vocabulary // tp, "k": layer.hidden},
    }


_ATTENTION = {
    "llama-3.1-8b": Attention(32, 8, 128),
    "llama-3.1-70b": Attention(64, 8, 128),
    "llama-3.1-405b": Attention(128, 8, 128),
    "llama-4-scout": Attention(40, 8, 128),
    "llama-4-maverick": Attention(40, 8, 128),
    "mixtral-8x7b": Attention(32, 8, 128),
    "mixtral-8x22b": Attention(48, 8, 128),
    "qwen3-0.6b": Attention(16, 8, 128),
    "qwen3-1.7b": Attention(16, 8, 128),
    "qwen3-4b": Attention(32, 8, 128),
    "qwen3-8b": Attention(32, 8, 128),
    "qwen3-14b": Attention(40, 8, 128),
    "qwen3-32b": Attention(64, 8, 128),
    "qwen3-30b-a3b": Attention(32, 4, 128),
    "qwen3-235b-a22b": Attention(64, 4, 128),
    "gpt-oss-20b": Attention(64, 8, 64),
    "gpt-oss-120b": Attention(64, 8, 64),
    "gemma-3-12b": Attention(16, 8, 256),
}
_LATENT = {
    "deepseek-v3": Latent(128),
    "deepseek-r1": Latent(128),
    "kimi-k2": Latent(64),
}

_DENSE = {
    name: Dense(_ATTENTION[name], *sizes)
    for name, sizes in {
        "llama-3.1-8b": (4096, 14336, 128256),
        "llama-3.1-70b": (8192, 28672, 128256),
        "llama-3.1-405b": (16384, 53248, 128256),
        "qwen3-8b": (4096, 12288, 151936),
        "qwen3-14b": (5120, 17408, 151936),
        "qwen3-32b": (5120, 25600, 151936),
    }.items()
}

attention = Presets(_ATTENTION, _grouped)
latent = Presets(_LATENT, _absorbed)
expanded: Presets[Any] = Presets({**_ATTENTION, **_LATENT}, _expanded)
projections = Presets(_DENSE, _projections)
