"""A model as its config.json describes it, from which the kernels of a step are computed (`kernels.py`).

What it has in common with the suite's published models is declared there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from pytest_flashinfer_perf.extensions.models.quantisation import Stored
from pytest_flashinfer_perf.routines.published_models import GroupedHeads, Latent, RoutedExperts

SILU, GELU = "silu_and_mul", "gelu_tanh_and_mul"  # as FlashInfer calls what follows a gate


@dataclass(frozen=True)
class Grouped(GroupedHeads):
    """Grouped-query attention, over all tokens or the last `window`; `sinks` are a learned logit for each head."""

    biased: bool = False  # the projection to queries, keys and values
    out_biased: bool = False
    window: int | None = None
    sinks: bool = False
    normed: int = 0  # parameters of norms of queries and keys
    rotated: bool = True  # by RoPE
    gated: bool = False  # a gate as wide as the queries, applied to the output

    @property
    def qkv(self) -> int:
        """The columns of queries, keys and values, and of the gate."""
        return super().qkv + self.gated * self.out


@dataclass(frozen=True)
class Recurrent:
    """A gated delta net: projections in and out are products like any other, the scan is not."""

    width_in: int
    width_out: int
    other: int  # parameters of the convolution, the decays and the norm


@dataclass(frozen=True)
class Dense:
    """A feed-forward layer."""

    width: int
    activation: str = SILU


@dataclass(frozen=True)
class Experts(RoutedExperts):
    """Routed experts and, where `shared` is there, one that every token takes."""

    biases: bool = False
    shared: Dense | None = None
    shared_gate: bool = False


T = TypeVar("T")
Mixer = Grouped | Latent | Recurrent
Feed = Dense | Experts


@dataclass(frozen=True)
class Layer:
    mixer: Mixer
    feed: Feed
    stored: Stored


@dataclass(frozen=True)
class Description:
    """A language model: without the draft layers and the encoders of images that may come with it."""

    name: str
    hidden: int
    vocabulary: int
    tied: bool
    layers: tuple[tuple[Layer, int], ...]  # each distinct one, and how often it is there
    gemma: bool = False  # its norms, which are also behind each part

    def first(self, kind: type[T]) -> T | None:
        """The first part of this kind, of any layer."""
        parts = (part for layer, _ in self.layers for part in (layer.mixer, layer.feed))
        return next((part for part in parts if isinstance(part, kind)), None)
