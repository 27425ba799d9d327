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
    q_lora_rank: int = 1536
    kv_lora_rank: int = 512
    qk_nope_head_dim: int = 128
    qk_rope_head_dim: int = 64
    v_head_dim: int = 128


@dataclass(frozen=True)
class Widths:
    """What a model's projections lead from and to; `intermediate` is that of its dense layers, if it has any."""

    attention: Attention | Latent
    hidden: int
    intermediate: int | None
    vocabulary: int

    @property
    def num_qo_heads(self) -> int:
        return self.attention.num_qo_heads


L = TypeVar("L", Attention, Latent, "Attention | Latent", Widths)


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


def _projections(layer: Widths, tp: int) -> dict[str, Any]:
    """Each one's n and k: first and last are split by columns, the inner ones by rows."""
    qkv, heads = _attended(layer.attention, tp)
    feed_forward = {} if layer.intermediate is None else _feed_forward(layer.hidden, layer.intermediate // tp)
    return {
        "qkv": {"n": qkv, "k": layer.hidden},
        "o": {"n": layer.hidden, "k": heads},
        **feed_forward,
        "lm-head": {"n": layer.vocabulary // tp, "k": layer.hidden},
    }


def _attended(attention: Attention | Latent, tp: int) -> tuple[int, int]:
    """How wide the queries, keys and values are together, and the output; each GPU has all of what is latent."""
    if isinstance(attention, Latent):
        latent = attention.q_lora_rank + attention.kv_lora_rank + attention.qk_rope_head_dim
        return latent, attention.num_qo_heads // tp * attention.v_head_dim
    grouped = _grouped(attention, tp)
    heads, keys = (grouped[name] * attention.head_dim for name in ("num_qo_heads", "num_kv_heads"))
    return heads + 2 * keys, heads


def _feed_forward(hidden: int, intermediate: int) -> dict[str, Any]:
    return {"gate-up": {"n": 2 * intermediate, "k": hidden}, "down": {"n": hidden, "k": intermediate}}


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

# Hidden size, that of dense feed-forward layers, vocabulary; where all of them are experts there is no second.
_WIDTHS = {
    "llama-3.1-8b": (4096, 14336, 128256),
    "llama-3.1-70b": (8192, 28672, 128256),
    "llama-3.1-405b": (16384, 53248, 128256),
    "llama-4-scout": (5120, None, 202048),
    "llama-4-maverick": (5120, 16384, 202048),
    "mixtral-8x7b": (4096, None, 32000),
    "mixtral-8x22b": (6144, None, 32000),
    "qwen3-0.6b": (1024, 3072, 151936),
    "qwen3-1.7b": (2048, 6144, 151936),
    "qwen3-4b": (2560, 9728, 151936),
    "qwen3-8b": (4096, 12288, 151936),
    "qwen3-14b": (5120, 17408, 151936),
    "qwen3-32b": (5120, 25600, 151936),
    "qwen3-30b-a3b": (2048, None, 151936),
    "qwen3-235b-a22b": (4096, None, 151936),
    "gpt-oss-20b": (2880, None, 201088),
    "gpt-oss-120b": (2880, None, 201088),
    "gemma-3-12b": (3840, 15360, 262208),
    "deepseek-v3": (7168, 18432, 129280),
    "deepseek-r1": (7168, 18432, 129280),
    "kimi-k2": (7168, 18432, 163840),
}

attention = Presets(_ATTENTION, _grouped)
latent = Presets(_LATENT, _absorbed)
_ALL: dict[str, Attention | Latent] = {**_ATTENTION, **_LATENT}
expanded: Presets[Any] = Presets(_ALL, _expanded)
projections = Presets({name: Widths(layer, *_WIDTHS[name]) for name, layer in _ALL.items()}, _projections)
