"""Published models as data: the sizes of their layers, of which the suite's shapes are made.

A test compares them with each config.json that is here (`tests/plugin/extensions/models/test_published.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, TypeVar

from pytest_flashinfer_perf.spec.presets import shared

H = TypeVar("H", bound="GroupedHeads")


@dataclass(frozen=True)
class GroupedHeads:
    """Grouped-query attention."""

    heads: int
    kv_heads: int
    head_dim: int

    def part(self: H, tp: int) -> H:  # noqa: PYI019 - typing has Self since Python 3.11
        """What one of `tp` GPUs has: key and value heads are replicated where there are fewer than GPUs."""
        heads = shared(self.heads, tp, "query heads")
        kv_heads = shared(self.kv_heads, tp, "key and value heads") if self.kv_heads > tp else 1
        return replace(self, heads=heads, kv_heads=kv_heads)

    @property
    def qkv(self) -> int:
        """The width of queries, keys and values together."""
        return self.head_dim * (self.heads + 2 * self.kv_heads)

    @property
    def out(self) -> int:
        return self.heads * self.head_dim


@dataclass(frozen=True)
class Latent:
    """Multi-head latent attention."""

    heads: int
    q_rank: int
    kv_rank: int
    nope_dim: int
    rope_dim: int
    v_dim: int

    def part(self, tp: int) -> Latent:
        """What one of `tp` GPUs has: some of the heads, and the whole latent part."""
        return replace(self, heads=shared(self.heads, tp, "query heads"))

    @property
    def down(self) -> int:
        """The width of the latent part."""
        return self.q_rank + self.kv_rank + self.rope_dim

    @property
    def query(self) -> int:
        return self.nope_dim + self.rope_dim


@dataclass(frozen=True)
class Routing:
    method: str
    groups: int | None = None
    groups_chosen: int | None = None
    scaling: float | None = None
    biased: bool = False

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters of a kernel that chooses the experts."""
        scaling = {} if self.scaling is None else {"routed_scaling_factor": self.scaling}
        groups = {"n_group": self.groups, "topk_group": self.groups_chosen}
        return {"routing_method": self.method, "use_routing_bias": self.biased, **groups, **scaling}


@dataclass(frozen=True)
class RoutedExperts:
    count: int
    chosen: int
    width: int
    routing: Routing


@dataclass(frozen=True)
class PublishedModel:
    """All layers of such a model have the same heads; `width` is that of its dense feed-forward layers."""

    hidden: int
    vocabulary: int
    heads: GroupedHeads | Latent
    width: int | None = None
    experts: RoutedExperts | None = None


def _renormalized(count: int, chosen: int, width: int) -> RoutedExperts:
    return RoutedExperts(count, chosen, width, Routing("renormalize"))


def _llama4(count: int) -> RoutedExperts:
    return RoutedExperts(count, 1, 8192, Routing("llama4"))


# In the order of tiers.

GROUPED = {
    "llama-3.1-8b": PublishedModel(4096, 128256, GroupedHeads(32, 8, 128), 14336),
    "llama-3.1-70b": PublishedModel(8192, 128256, GroupedHeads(64, 8, 128), 28672),
    "llama-3.1-405b": PublishedModel(16384, 128256, GroupedHeads(128, 8, 128), 53248),
    "llama-4-scout": PublishedModel(5120, 202048, GroupedHeads(40, 8, 128), None, _llama4(16)),
    "llama-4-maverick": PublishedModel(5120, 202048, GroupedHeads(40, 8, 128), 16384, _llama4(128)),
    "mixtral-8x7b": PublishedModel(4096, 32000, GroupedHeads(32, 8, 128), None, _renormalized(8, 2, 14336)),
    "mixtral-8x22b": PublishedModel(6144, 32000, GroupedHeads(48, 8, 128), None, _renormalized(8, 2, 16384)),
    "qwen3-0.6b": PublishedModel(1024, 151936, GroupedHeads(16, 8, 128), 3072),
    "qwen3-1.7b": PublishedModel(2048, 151936, GroupedHeads(16, 8, 128), 6144),
    "qwen3-8b": PublishedModel(4096, 151936, GroupedHeads(32, 8, 128), 12288),
    "qwen3-32b": PublishedModel(5120, 151936, GroupedHeads(64, 8, 128), 25600),
    "qwen3-30b-a3b": PublishedModel(2048, 151936, GroupedHeads(32, 4, 128), None, _renormalized(128, 8, 768)),
    "qwen3-235b-a22b": PublishedModel(4096, 151936, GroupedHeads(64, 4, 128), None, _renormalized(128, 8, 1536)),
    "gpt-oss-20b": PublishedModel(2880, 201088, GroupedHeads(64, 8, 64), None, _renormalized(32, 4, 2880)),
    "gpt-oss-120b": PublishedModel(2880, 201088, GroupedHeads(64, 8, 64), None, _renormalized(128, 4, 2880)),
    "qwen3-4b": PublishedModel(2560, 151936, GroupedHeads(32, 8, 128), 9728),
    "qwen3-14b": PublishedModel(5120, 151936, GroupedHeads(40, 8, 128), 17408),
    "gemma-3-12b": PublishedModel(3840, 262208, GroupedHeads(16, 8, 256), 15360),
}

_DEEPSEEK = PublishedModel(
    7168,
    129280,
    Latent(heads=128, q_rank=1536, kv_rank=512, nope_dim=128, rope_dim=64, v_dim=128),
    18432,
    RoutedExperts(256, 8, 2048, Routing("deepseek_v3", groups=8, groups_chosen=4, scaling=2.5, biased=True)),
)
LATENT = {
    "deepseek-v3": _DEEPSEEK,
    "deepseek-r1": _DEEPSEEK,
    "kimi-k2": PublishedModel(
        7168,
        163840,
        Latent(heads=64, q_rank=1536, kv_rank=512, nope_dim=128, rope_dim=64, v_dim=128),
        18432,
        RoutedExperts(384, 8, 2048, Routing("deepseek_v3", scaling=2.827, biased=True)),
    ),
}

# Of these only the experts: few of their layers have attention.
HYBRID = {"qwen3.5-35b-a3b": PublishedModel(2048, 248320, GroupedHeads(16, 2, 256), None, _renormalized(256, 8, 512))}
