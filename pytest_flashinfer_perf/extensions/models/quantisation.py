"""How a checkpoint stores its weights, from `quantization_config` or the hf_quant_config.json beside it."""

from __future__ import annotations

import fnmatch
import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass

from pytest_flashinfer_perf.extensions.models.config_json import Fields

BITS: Mapping[str, float] = {
    "bf16": 16,
    "fp8": 8,
    "fp8_blocks": 8 + 32 / 128**2,
    "nvfp4": 4.5,
    "mxfp4": 4.25,
}
# How many columns of a row share a scale, so that a GPU's part has whole ones.
COLUMNS: Mapping[str, int] = {"bf16": 1, "fp8": 1, "fp8_blocks": 128, "nvfp4": 16, "mxfp4": 32}
BLOCKS = [128, 128]
ALGORITHMS = {"FP8": "fp8", "NVFP4": "nvfp4"}
ROOTS = ("model", "model.language_model", "language_model.model")
SUPPORTED = "fp8, fbgemm_fp8, mxfp4 and modelopt (FP8, NVFP4) are known"


@dataclass(frozen=True)
class Stored:
    """The type of each kind of weights of a layer."""

    mixer: str = "bf16"
    dense: str = "bf16"
    experts: str = "bf16"


@dataclass(frozen=True)
class Quantisation:
    """The type of the quantised modules, and the patterns of those that are left as they were."""

    kind: str = "bf16"
    kept: tuple[str, ...] = ()
    experts_only: bool = False

    def of(self, layer: int) -> Stored:
        dense = "bf16" if self.experts_only else self.kind
        mixer = "bf16" if self._keeps(layer, "self_attn.o_proj", "linear_attn.out_proj") else dense
        feed = "bf16" if self._keeps(layer, "mlp.down_proj") else dense
        routed = ("mlp.experts.0.down_proj", "block_sparse_moe.experts.0.w2")
        return Stored(mixer, feed, "bf16" if self._keeps(layer, *routed) else self.kind)

    @functools.cached_property
    def _pattern(self) -> re.Pattern[str]:
        """One of all patterns; each is a glob, or the name of a module that contains others."""
        either = (pattern for kept in self.kept for pattern in (kept, f"{kept}.*"))
        return re.compile("|".join(map(fnmatch.translate, either)))

    def _keeps(self, layer: int, *modules: str) -> bool:
        if not self.kept:
            return False
        names = [f"{root}.layers.{layer}.{module}" for root in ROOTS for module in modules]
        return any(map(self._pattern.match, names))


def read(config: Fields) -> Quantisation:
    """Read the quantisation in a config; without such a field the weights are bf16."""
    fields = config.below("quantization_config")
    kept = (*fields.words("modules_to_not_convert"), *fields.words("ignore"), *fields.words("exclude_modules"))
    return Quantisation(_kind(fields), kept, fields.word("quant_method") == "mxfp4")


def _kind(fields: Fields) -> str:
    method, algorithm = fields.word("quant_method"), fields.word("quant_algo")
    if algorithm and method in ("", "modelopt"):
        if algorithm not in ALGORITHMS:
            raise fields.fault("quant_algo", f"{algorithm!r} is unknown: {SUPPORTED}")
        return ALGORITHMS[algorithm]
    if method not in ("", "mxfp4", "fp8", "fbgemm_fp8"):
        raise fields.fault("quant_method", f"{method!r} is unknown: {SUPPORTED}")
    if not method.endswith("fp8"):
        return method or "bf16"
    blocks = list(fields.numbers("weight_block_size"))
    if blocks not in ([], BLOCKS):
        raise fields.fault("weight_block_size", f"{blocks} is not measured here, only {BLOCKS} or none")
    return "fp8_blocks" if blocks else "fp8"
