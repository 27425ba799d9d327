"""A model as its config.json describes it: layers, their attention and feed-forward parts, and stored weights.

There is one description of a model. The shapes that routines are swept with (`layers.py`) and the kernels of a step
(`kernels.py`) are both computed from it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, TypeVar

from pytest_flashinfer_perf.extensions.models.quantisation import Stored
from pytest_flashinfer_perf.spec.presets import shared


@dataclass(frozen=True)
class Grouped:
    """Grouped-query attention, over all tokens or the last `window`; `sinks` are a learned logit for each head."""

    heads: int
    kv_heads: int
    head_dim: int
    biased: bool = False  # its projections
    window: int | None = None
    sinks: bool = False
    normed: int = 0  # parameters of norms of queries and keys
    rotated: bool = True  # by RoPE
    gated: bool = False  # a gate as wide as the queries, applied to the output

    def part(self, tp: int) -> Grouped:
        """What one of `tp` GPUs has: key and value heads are replicated where there are fewer than GPUs."""
        heads = shared(self.heads, tp, "query heads")
        kv_heads = shared(self.kv_heads, tp, "key and value heads") if self.kv_heads > tp else 1
        return replace(self, heads=heads, kv_heads=kv_heads)

    @property
    def qkv(self) -> int:
        """The width of queries, keys and values together, and of the gate."""
        return self.head_dim * (self.heads * (2 if self.gated else 1) + 2 * self.kv_heads)

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
class Recurrent:
    """A state instead of a cache: projections in and out are products like any other, the scan is not."""

    kind: str
    width_in: int
    width_out: int
    other: int  # parameters of the convolution, the decays and the norm
    state: int  # numbers that a request keeps


@dataclass(frozen=True)
class Dense:
    """A feed-forward layer; without a gate it has two matrices instead of three."""

    width: int
    gated: bool = True


@dataclass(frozen=True)
class Routing:
    method: str
    groups: int | None = None
    groups_chosen: int | None = None
    scaling: float | None = None
    biased: bool = False

    @property
    def parameters(self) -> dict[str, Any]:
        """Of a kernel that chooses the experts."""
        scaling = {} if self.scaling is None else {"routed_scaling_factor": self.scaling}
        groups = {"n_group": self.groups, "topk_group": self.groups_chosen}
        return {"routing_method": self.method, "use_routing_bias": self.biased, **groups, **scaling}


@dataclass(frozen=True)
class Experts:
    """Routed experts and, where `shared` is there, one that every token takes."""

    count: int
    chosen: int
    width: int
    routing: Routing
    gated: bool = True
    biases: bool = False
    activation: str = "Swiglu"
    shared: Dense | None = None
    shared_gate: bool = False


T = TypeVar("T")
Mixer = Grouped | Latent | Recurrent | None
Feed = Dense | Experts | None


@dataclass(frozen=True)
class Layer:
    mixer: Mixer
    feed: Feed
    stored: Stored

    @property
    def norms(self) -> int:
        return (self.mixer is not None) + (self.feed is not None)


@dataclass(frozen=True)
class Description:
    """A language model: without the draft layers and the encoders of images that may come with it."""

    name: str
    architecture: str
    hidden: int
    vocabulary: int
    tied: bool
    layers: tuple[tuple[Layer, int], ...]  # each distinct one, and how often it is there
    dtype: str = "bf16"  # of the weights that are not quantised

    def first(self, kind: type[T]) -> T | None:
        """The first part of this kind, of any layer."""
        parts = (part for layer, _ in self.layers for part in (layer.mixer, layer.feed))
        return next((part for part in parts if isinstance(part, kind)), None)
