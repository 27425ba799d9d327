"""Translate a line of `flashinfer_benchmark.py` whose routine is an API with a template to the API's flags."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pytest_flashinfer_perf.routines.derived import NotAnApiError
from pytest_flashinfer_perf.routines.derived.shapes import FLOATS, PROBABILITIES, UNIFORM
from pytest_flashinfer_perf.routines.derived.templates import Api, installed
from pytest_flashinfer_perf.spec.params import ParamError

# Routines that are not called as their API is.
NAMES = {
    "MSAProxyScore": "msa_proxy_score",
    "MSASparseAttention": "msa_sparse_attention",
    "MSASparseDecode": "msa_sparse_decode_attention",
    "cute_dsl_fp4_block_scale_moe": "cute_dsl_fused_moe_nvfp4",
    "recurrent_kda_prefill": "recurrent_kda",
    "gated_delta_rule_decode": "gated_delta_rule_decode_pretranspose",
    "fused_dit_layernorm": "fused_dit_gate_residual_layernorm_gamma_beta",
    "cute_dsl_bf16_moe": "cute_dsl_fused_moe_bf16",
}
# Those that call another API where a flag has this value.
NAMES_BY_FLAG = {
    ("gated_delta_rule_decode", "state_layout", "nontranspose"): "gated_delta_rule_decode",
    ("gated_delta_rule_mtp", "state_dtype", "bfloat16"): "gated_delta_rule_decode_pretranspose",
    ("fused_dit_layernorm", "dit_mode", "gate_residual_scale_shift"): "fused_dit_gate_residual_layernorm_scale_shift",
    ("fused_dit_layernorm", "dit_mode", "residual_scale_shift"): "fused_dit_residual_layernorm_scale_shift",
}
# Why FlashInfer's template of these is not completed here: what runs them, as no SM90 GPU does, or what they are.
WHY_NOT = {
    "bgmv_moe": "its weights are addresses in a table, which copies for a cold cache would not follow",
    "cute_dsl_fp4_block_scale_moe": "it needs a GPU of compute capability 10.0 or 10.3",
    "b12x_fused_moe": "it needs a GPU of compute capability 12.0 or 12.1",
    "unified_nvfp4_moe": "it needs a GPU of compute capability 10.0 or 10.3",
    "nvfp4_batched_quantize": "it needs a GPU of compute capability 10.0 or later",
    "alphamoe_nvfp4_aligned_moe": "it needs a GPU of compute capability 10.0 or 10.3",
    "trtllm_batch_decode_sparse_mla_dsv4": "it needs a GPU of compute capability 10.0 or 10.3",
    "recurrent_kda_prefill": "it needs a GPU of compute capability 12.0",
    "MSAPipeline": "it needs a GPU of compute capability 12.0 or 12.1",
    "rmsnorm_fp4quant": "it needs a GPU of compute capability 10.0 or later",
    "add_rmsnorm_fp4quant": "it needs a GPU of compute capability 10.0 or later",
    "nvfp4_quantize": "it needs a GPU of compute capability 10.0 or later",
}
# An axis is as long as these flags multiplied, where no flag has its name.
AXES: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "nnz": (("batch_size", "seq_len"),),
    "num_tokens": (("batch_size",),),
    "M": (("m",),),
    "N": (("n",),),
    "K": (("k",),),
    "k": (("top_k",),),
    "num_q_heads": (("num_qo_heads",),),
    "num_k_heads": (("num_kv_heads",),),
    "num_q_heads_x_head_size": (("num_qo_heads", "head_dim"),),
    "num_k_heads_x_head_size": (("num_kv_heads", "head_dim"),),
    "head_size": (("head_dim",),),
    "num_speculative": (("num_speculate_tokens",),),
    "total_seq_len": (("batch_size", "s_qo"),),
    "num_seqs": (("batch_size",),),
    "qo_len": (("s_qo",),),
    "kv_len": (("s_kv",),),
    "seq_len": (("num_tokens",),),
    "num_rows": (("batch_size",),),
    "max_pages_per_seq": (("max_len",),),  # of pages of one token
    "total_q": (("batch_size", "s_qo"),),
    "total_k": (("batch_size", "s_kv"),),
    "pool_size": (("batch_size",),),
}
# The same, of single routines.
AXES_OF: Mapping[str, Mapping[str, tuple[tuple[str, ...], ...]]] = {
    "fused_dit_layernorm": {"num_rows": (("hidden_size",),)},  # as upstream's parser has no flag for them
    # Room for any lengths, which `init` draws: into less of it they may not fit.
    "rope_quantize_fp8_append_paged_kv_cache": {"num_pages": (("batch_size", "seq_len"),)},
}
_GDN = {"num_q_heads": "16", "num_k_heads": "16", "num_v_heads": "32"}
_MSA = {"batch_size": "1", "s_kv": "4096", "num_qo_heads": "64", "num_kv_heads": "4", "topk": "16"}
_DRAWN_FROM = {"seed": "42", "offset": "0"}  # else it is torch's generator, which adds two kernels to a graph
# What upstream takes where a line has no such flag, by family or routine, of what an API has as an axis or an argument.
DEFAULTS: Mapping[str, Mapping[str, str]] = {
    "rope": {"input_dtype": "float16"},
    "sampling": {"top_k": "50", "top_p": "0.9", "min_p": "0.1", "num_speculate_tokens": "5", **_DRAWN_FROM},
    "topk": {"top_k": "50", "max_len": "4096"},
    "gdn_decode": _GDN,
    "gated_delta_rule_mtp": {**_GDN, "seq_len": "2"},
    "gdn_prefill": {**_GDN, "s_qo": "2048"},
    "msa_ops": {**_MSA, "s_qo": "4096"},
    "MSASparseDecode": {**_MSA, "s_qo": "1"},
}
ARGUMENTS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "no_sf_swizzled_layout": (("is_sf_swizzled_layout", "False"),),
    "interleave": (("interleave", "True"), ("is_neox", "False")),
}
# What every template does anyway.
ANYWAY = {
    "out_dtype": ("fp8_e4m3", "nvfp4", "bfloat16"),
    "quant_dtype": ("fp8_e4m3",),
    "filter_apply_order": ("top_k_first",),
    "kv_layout": ("NHD",),
    "sf_layout": ("128x4",),
    "global_scale": ("1.0",),
    "state_layout": ("pretranspose", "nontranspose"),
    "state_dtype": ("float32",),
    "pool_mode": ("single",),
    "dit_mode": ("gate_residual_gamma_beta", "gate_residual_scale_shift", "residual_scale_shift"),
}
# Types that a routine's parser takes alone: `--dtype` would cast what is first of the inputs, which is a state.
OWN_TYPE = {"selective_state_update": "bfloat16"}


@dataclass(frozen=True)
class _Line:
    """The flags of a line, some of which a part of the API has taken."""

    routine: str
    api: Api
    flags: Mapping[str, str]

    @classmethod
    def read(cls, routine: str, api: Api, flags: Mapping[str, str]) -> _Line:
        """With what upstream takes for granted: `enable_pdl` is off unless it is asked for."""
        defaults = {"enable_pdl": "False", **DEFAULTS.get(routine, DEFAULTS.get(api.family, {}))}
        axes = {axis.name for axis in api.axes}
        known = {*api.arguments, *axes, "input_dtype"}
        known |= {name for axis in axes for names in AXES.get(axis, ()) for name in names}
        given = {**{name: defaults[name] for name in defaults if name in known}, **flags}
        return cls(routine, api, _turned(routine, given) if "rope_dim" in axes else given)

    def words(self) -> list[str]:
        axes = dict(self._axes())
        words = {axis.name for axis in self.api.axes if isinstance(axis.default, (str, bool))}
        sizes = {axis: self.flags[axis] if axis in words else self._size(names) for axis, names in axes.items()}
        taken = {name for axis in axes for names in ((axis,), *self._names(axis)) for name in names}
        others = {name: value for name, value in self.flags.items() if name not in taken}
        dtype = others.pop("input_dtype", None)
        arguments = ",".join(word for name, value in others.items() for word in self._argument(name, value))
        flags = {
            **sizes,
            **({"dtype": self._known(dtype)} if dtype and dtype != OWN_TYPE.get(self.routine) else {}),
            **({"arguments": arguments} if arguments else {}),
            **({"probabilities": UNIFORM} if {*PROBABILITIES} & {*self.api.arguments} else {}),
        }
        return [word for name, value in flags.items() for word in (f"--{name}", str(value)) if word]

    def _names(self, axis: str) -> tuple[tuple[str, ...], ...]:
        return AXES_OF.get(self.routine, {}).get(axis) or AXES.get(axis, ())

    def _axes(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        for axis in self.api.axes:
            options = ((axis.name,), *self._names(axis.name))
            found = next((names for names in options if set(names) <= set(self.flags)), None)
            if found:
                yield axis.name, found

    def _size(self, names: tuple[str, ...]) -> int:
        return math.prod(_number(name, self.flags) for name in names)

    def _known(self, dtype: str) -> str:
        if dtype not in FLOATS:
            raise NotAnApiError(f"{self.routine}: {self.api.path}: its template makes no inputs of {dtype}")
        return dtype

    def _argument(self, name: str, value: str) -> Iterator[str]:
        options = ARGUMENTS.get(name, ((name, value or "True"),))
        found = next((f"{argument}={fixed}" for argument, fixed in options if argument in self.api.arguments), None)
        if found:
            yield found
        elif value not in ANYWAY.get(name, ()):
            raise NotAnApiError(
                f"{self.routine}: {self.api.path}: its template has no --{name}{_why_not(self.routine)}"
            )


def _number(name: str, flags: Mapping[str, str]) -> int:
    try:
        return int(flags[name])
    except ValueError:
        raise ParamError(f"{name}: must be a number, got {flags[name]!r}") from None


def _why_not(routine: str) -> str:
    return f" ({WHY_NOT[routine]})" if routine in WHY_NOT else ""


def _turned(routine: str, flags: Mapping[str, str]) -> Mapping[str, str]:
    """How much of a head is turned: upstream's flags name the whole of it, and one of its two parts."""
    if "head_dim" not in flags:
        return flags
    given = {"rotary_dim": flags["head_dim"], "no_rope_dim": "0", **flags}
    whole, turned, rest = (_number(name, given) for name in ("head_dim", "rotary_dim", "no_rope_dim"))
    if routine == "mla_rope_quantize_fp8":
        turned = whole - rest
    elif routine == "rope_quantize_fp8_append_paged_kv_cache":
        rest = whole - turned
    sizes = {"rope_dim": turned, "rotary_dim": turned, "no_rope_dim": rest}
    dropped = {"head_dim", *(["num_kv_heads"] if routine == "mla_rope_quantize_fp8" else [])}  # its keys have no heads
    return {
        **{name: value for name, value in flags.items() if name not in dropped},
        **{n: str(v) for n, v in sizes.items()},
    }


def translated(routine: str, api: Api, rest: Sequence[str]) -> list[str]:
    """The flags of upstream's line, as those of the API."""
    return _Line.read(routine, api, _flags(rest)).words()


def api_of(routine: str, rest: Sequence[str] = ()) -> Api:
    """The API that upstream's routine calls."""
    known = installed()
    by_flag = (NAMES_BY_FLAG.get((routine, name, value)) for name, value in _pairs(rest))
    wanted = next(filter(None, by_flag), NAMES.get(routine, routine))
    found = [api for api in known.apis if api.path.rpartition(".")[2] == wanted]
    if not found:
        where = f"FlashInfer {known.version} has" if known.version else "without FlashInfer there is"
        raise NotAnApiError(f"{routine}: {where} no such API with a trace template{_why_not(routine)}")
    best = next((api for api in found if not api.missing), found[0])
    if best.missing:
        raise NotAnApiError(f"{routine}: {best.path}: {best.missing}{_why_not(routine)}")
    return best


def _pairs(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Each flag with the word behind it."""
    for word, following in zip(words, [*words[1:], ""], strict=True):
        name, _, value = word.removeprefix("--").partition("=")
        yield name, value or following


def _flags(rest: Sequence[str]) -> dict[str, str]:
    """A flag's value is empty where it has none."""
    found: dict[str, str] = {}
    name = ""
    for word in rest:
        if word.startswith("--"):
            name, _, value = word[2:].partition("=")
            found[name] = value
        elif name and not found[name]:
            found[name] = word
        else:
            raise ParamError(f"{word!r} belongs to no flag")
    return found
