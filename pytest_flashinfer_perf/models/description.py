"""The types that describe a model: layers, their attention and feed-forward parts, stored weights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pytest_flashinfer_perf.models.quantisation import Stored


@dataclass(frozen=True)
class Grouped:
    """Grouped-query attention, over all tokens or the last `window`; `sinks` are a learned logit for each head."""

    heads: int
    kv_heads: int
    head_dim: int
    window: int | None = None
    sinks: bool = False
    biases: tuple[str, ...] = ()  # of these projections: qkv, o
    normed: int = 0  # parameters of norms of queries and keys
    rotated: bool = True  # by RoPE
    gated: bool = False  # a gate as wide as the queries, applied to the output

    @property
    def q_width(self) -> int:
        return self.heads * self.head_dim * (2 if self.gated else 1)

    def parameters(self, hidden: int) -> int:
        kv, out = 2 * self.kv_heads * self.head_dim, self.heads * self.head_dim
        biases = (self.q_width + kv) * ("qkv" in self.biases) + hidden * ("o" in self.biases)
        return hidden * (self.q_width + kv + out) + biases + self.heads * self.sinks + self.normed


@dataclass(frozen=True)
class Latent:
    """Multi-head latent attention."""

    heads: int
    q_rank: int
    kv_rank: int
    nope_dim: int
    rope_dim: int
    v_dim: int

    def parameters(self, hidden: int) -> int:
        down = hidden * (self.q_rank + self.kv_rank + self.rope_dim) + self.q_rank + self.kv_rank
        up = self.heads * (self.q_rank * (self.nope_dim + self.rope_dim) + self.kv_rank * (self.nope_dim + self.v_dim))
        return down + up + hidden * self.heads * self.v_dim


@dataclass(frozen=True)
class Recurrent:
    """A state instead of a cache: projections in and out are products like any other, the scan is not."""

    kind: str
    width_in: int
    width_out: int
    other: int  # parameters of the convolution, the decays and the norm
    state: int  # numbers that a request keeps

    def parameters(self, hidden: int) -> int:
        return hidden * (self.width_in + self.width_out) + self.other


@dataclass(frozen=True)
class Dense:
    """A feed-forward layer; without a gate it has two matrices instead of three."""

    width: int
    gated: bool = True

    def parameters(self, hidden: int) -> int:
        return (3 if self.gated else 2) * hidden * self.width


@dataclass(frozen=True)
class Routing:
    method: str
    groups: int | None = None
    groups_chosen: int | None = None
    scaling: float | None = None
    biased: bool = False


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

    def router(self, hidden: int) -> int:
        return self.count * (hidden + self.routing.biased + self.biases) + hidden * self.shared_gate

    def routed(self, hidden: int) -> int:
        biases = (2 * self.width + hidden) * self.biases
        return self.count * ((3 if self.gated else 2) * hidden * self.width + biases)

    def parameters(self, hidden: int) -> int:
        shared = self.shared.parameters(hidden) if self.shared else 0
        return self.router(hidden) + self.routed(hidden) + shared


Mixer = Grouped | Latent | Recurrent | None
Feed = Dense | Experts | None


@dataclass(frozen=True)
class Layer:
    mixer: Mixer
    feed: Feed
    stored: Stored
    norms: int = 2

    def parameters(self, hidden: int) -> int:
        inner = sum(part.parameters(hidden) for part in (self.mixer, self.feed) if part is not None)
        return inner + self.norms * hidden


@dataclass(frozen=True)
class Description:
    """A language model: without the draft layers and the encoders of images that may come with it."""

    name: str
    architecture: str
    hidden: int
    vocabulary: int
    tied: bool
    layers: tuple[tuple[Layer, int], ...]  # each distinct one, and how often it is there

    @property
    def embedding(self) -> int:
        return self.vocabulary * self.hidden

    @property
    def parameters(self) -> int:
        tables = self.embedding * (1 if self.tied else 2)
        return tables + self.hidden + sum(layer.parameters(self.hidden) * count for layer, count in self.layers)

    def mixers(self) -> Iterator[Mixer]:
        return (layer.mixer for layer, _ in self.layers)

    def feeds(self) -> Iterator[Feed]:
        return (layer.feed for layer, _ in self.layers)
