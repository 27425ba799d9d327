"""All that a template does not say, in one place: of single APIs, of names that APIs share, of upstream's lines.

Everything else of an API is derived from its template. An entry here is a debt: a test counts the entries, and holds
each key of `APIS` against the templates of the installed FlashInfer, so that what FlashInfer mends is removed here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from pytest_flashinfer_perf.extensions.apis.templates import Api

BY_COLUMNS = "by columns"
ONE_RANK = "it knows of one rank alone"  # and so does the workspace that its `init` makes
Sizes = Mapping[str, int]


@dataclass(frozen=True)
class ApiSpecial:
    """What is special about an API, or about its template."""

    weak: str = ""  # what the reference does not know of what its API does
    not_compared: tuple[str, ...] = ()  # outputs whose reference answers another question
    why_not_compared: str = ""
    unordered: tuple[str, ...] = ()  # outputs besides indices that may come in any order
    runs_as: str = ""  # the key of its GPUs in `machine/capability.py`, where no decorator of the API says them
    arguments: Mapping[str, bool] = field(default_factory=dict)  # what a reference takes for granted
    taken_as: Mapping[str, str] = field(default_factory=dict)  # tensors taken in another layout or type than made
    at_least: Mapping[str, str] = field(default_factory=dict)  # axes, and the axis that each must not be below
    smoke: Sizes = field(default_factory=dict)  # sizes of the smoke tier that the common ones do not fit
    usual: Sizes = field(default_factory=dict)  # those of the default tier: a kernel's only or largest ones


_ROUNDS_UP = "it rounds scales down, which the kernel rounds up"
_SWIZZLED = "it has scales by rows, which the kernel swizzles"
# By a part of the API's path and its template's label, between spaces; the first entry that has a fact decides it.
APIS: Mapping[str, ApiSpecial] = {
    "gqa_paged_prefill": ApiSpecial(weak="it takes all requests for equally long ones"),
    "trtllm_batch_context": ApiSpecial(weak="it ignores the lengths of requests", runs_as="trtllm-gen"),
    "flashinfer.comm.": ApiSpecial(weak=ONE_RANK),
    "rope_quantize_fp8_append": ApiSpecial(
        not_compared=("paged_kv_cache[0]",), why_not_compared="it has the two parts of K in the other order"
    ),
    "mxfp4_quantize": ApiSpecial(not_compared=("quantized", "scales"), why_not_compared=_ROUNDS_UP),
    " mxfp8_quantize ": ApiSpecial(not_compared=("quantized", "scales"), why_not_compared=_ROUNDS_UP),
    "fp4_quantize": ApiSpecial(not_compared=("scales", "sf"), why_not_compared=_SWIZZLED),
    "nvfp4_experts_quantize": ApiSpecial(
        not_compared=("a_fp4", "a_sf"), why_not_compared="it has neither the kernel's scales nor its layout"
    ),
    "fused_moe.core.trtllm_": ApiSpecial(runs_as="trtllm"),
    "fused_moe.backends.prims_ts": ApiSpecial(runs_as="prims-ts"),
    "trtllm_ragged_attention": ApiSpecial(runs_as="trtllm-gen"),
    " pod_run ": ApiSpecial(arguments={"causal_p": True}),
    " segment_gemm_run ": ApiSpecial(arguments={"weight_column_major": False}),
    " bmm_": ApiSpecial(taken_as={"B": BY_COLUMNS}),
    "mm_M1_16_K7168_N256": ApiSpecial(taken_as={"mat_b": BY_COLUMNS, "out": "float32"}),
    " top_k ": ApiSpecial(unordered=("values",)),
    # Each request has a state of its own in a pool, and `init` makes 8: the kernel would read beyond them.
    "gdn_mtp": ApiSpecial(smoke={"batch_size": 4}, at_least={"pool_size": "batch_size"}),
    # One page for each request, of which `init` makes as many as the smoke tier has, or 8.
    "gdn_fused_decode": ApiSpecial(smoke={"batch_size": 4}, usual={"batch_size": 8}),
    "batch_deepgemm_fp8_nt_groupwise": ApiSpecial(smoke={"batch_size": 1, "N": 512, "K": 512}),  # a loop over blocks
    "trtllm_batch_decode_mla_sparse": ApiSpecial(smoke={"batch_size": 1, "sparse_mla_top_k": 16}),  # else 2048 pages
    "fmha_v2_prefill_": ApiSpecial(smoke={"batch_size": 1, "num_heads": 4}),  # a loop over all queries
    "top_k_page_table_transform": ApiSpecial(smoke={"num_rows": 4}),  # a row for each of the 4 requests of `init`
    "selective_state_update": ApiSpecial(smoke={"nheads": 8, "ngroups": 1}, usual={"batch_size": 256}),
    "fp8_blockscale_gemm_sm90": ApiSpecial(taken_as={"input_scale": BY_COLUMNS}),
    "mono_moe": ApiSpecial(
        usual={"seq_len": 8},
        not_compared=("output",),
        why_not_compared="it applies SiLU to the half of the rows that the kernel multiplies by",
    ),
    "chain_speculative": ApiSpecial(
        not_compared=("accepted_token_ids",), why_not_compared="it accepts the likeliest tokens, and the kernel draws"
    ),
    "mm_M1_16_K": ApiSpecial(usual={"M": 16}),
}


def special(api: Api) -> ApiSpecial:
    """The special facts of an API: each from the first entry that has it."""
    names = f" {api.path} {api.label} "
    entries = [one for part, one in APIS.items() if part in names]
    facts = {fact.name: [value for one in entries if (value := getattr(one, fact.name))] for fact in fields(ApiSpecial)}
    return ApiSpecial(**{name: values[0] for name, values in facts.items() if values})


# Names that many APIs have: of axes, and of arguments.

# The axis that counts a call's rows has many names: each of them is understood where an API has one of them.
ROWS = ("num_tokens", "batch_size", "num_rows", "nnz", "M", "m", "seq_len", "total_q", "num_qo_tokens")
SYNONYMS = {"N": ("n",), "K": ("k",), "head_size": ("head_dim",), "k": ("top_k",), "topk": ("top_k",)}
# Axes of one element or none, and such as follow from others: `init` takes them and does not look at them. These are
# all of 0.6.18 and 0.7.2; one more of a newer FlashInfer becomes a flag without effect.
UNREAD = ("one", "scalar", "zero", "num_heads_broadcast", "head_dim_half", "scale_size")
ONE_MORE = "_plus_1"  # ends the name of an axis that follows from another one
# How many, in the smoke tier and in the default tier, of an axis without a default.
COUNTS: Mapping[str, tuple[int, tuple[int, ...]]] = {
    "num_states": (4, (4,)),
    "num_groups": (2, (8,)),
    "num_pages": (16, (1024,)),
    "q_len_per_request": (1, (1,)),
    "cp_size": (2, (4,)),
    "num_indices": (16, (64,)),
    "kv_len": (256, (4096,)),
    "total_seq_len": (128, (4096,)),
    "K_doubled": (256, (8192,)),
    "B": (2, (8,)),
}
OF_CACHES = {"page_size", "kv_len", "max_seq_len", "block_size", "num_pages", "q_len_per_request"}
ROW_BY_ROW = ("rope", "gemm", "cute_dsl", "quantization")  # families whose caches and blocks are read by rows
# A mixture of experts is made and answered by loops over them: small ones to try.
SMALL_EXPERTS = {
    "num_experts": 32,
    "num_local_experts": 8,
    "num_routed_experts": 64,
    "hidden_size": 512,
    "intermediate_size": 256,
}
# The first axis of what is read through indices, and the axes of the indices that say which of it.
GATHERED = {"num_pages": ("num_kv_indices", "max_pages_per_seq"), "max_seq_len": ("nnz",), "vocab": ("num_tokens",)}
PROBABILITIES = ("probs", "draft_probs", "target_probs")  # arguments of samplers
SCRATCH = ("workspace", "semaphore")  # parts of the names of memory to work in
# Arguments that are written and not read, also where a template lists them among its inputs.
WRITE_ONLY = ("out", "output", "topk_values", "topk_indices")
SAME_ANSWER = {"enable_pdl"}  # arguments that change how, not what
SCALES = {"scale"}  # tensors although a number is taken: of a number FlashInfer makes a tensor, in each call


# Lines of `flashinfer_benchmark.py`: what a routine of upstream's script calls, takes for granted, or cannot have here.


@dataclass(frozen=True)
class LineSpecial:
    """What is special about a routine of upstream's script; `defaults` come before the common ones."""

    api: str = ""  # the API that it calls, where that has another name
    by_flag: Mapping[str, str] = field(default_factory=dict)  # and where a flag has this value
    defaults: Mapping[str, str] = field(default_factory=dict)
    anyway: Mapping[str, str] = field(default_factory=dict)  # flags, and the value that its template has anyway


_GDN = {"num_q_heads": "16", "num_k_heads": "16", "num_v_heads": "32"}
_MSA = {"batch_size": "1", "s_kv": "4096", "num_qo_heads": "64", "num_kv_heads": "4", "topk": "16"}
LINES: Mapping[str, LineSpecial] = {
    "MSAProxyScore": LineSpecial("msa_proxy_score"),
    "MSASparseAttention": LineSpecial("msa_sparse_attention"),
    "MSASparseDecode": LineSpecial("msa_sparse_decode_attention", defaults={**_MSA, "s_qo": "1"}),
    "recurrent_kda_prefill": LineSpecial("recurrent_kda"),
    "gated_delta_rule_decode": LineSpecial(
        "gated_delta_rule_decode_pretranspose", {"state_layout=nontranspose": "gated_delta_rule_decode"}
    ),
    "gated_delta_rule_mtp": LineSpecial(defaults={**_GDN, "seq_len": "2"}),
    "selective_state_update": LineSpecial(anyway={"state_dtype": "bfloat16", "weight_dtype": "float32"}),
}
DRAWN_FROM = {"seed": "42", "offset": "0"}  # else it is torch's generator, which adds two kernels to a graph
# What upstream takes where a line has no such flag, by the API's family, of what an API has as an axis or an argument.
DEFAULTS: Mapping[str, Mapping[str, str]] = {
    "rope": {"input_dtype": "float16"},
    "sampling": {"top_k": "50", "top_p": "0.9", "min_p": "0.1", "num_speculate_tokens": "5", **DRAWN_FROM},
    "topk": {"top_k": "50", "max_len": "4096"},
    "gdn_decode": _GDN,
    "gdn_prefill": {**_GDN, "s_qo": "2048"},
    "msa_ops": {**_MSA, "s_qo": "4096"},
}
# An axis is as long as these flags multiplied, where no flag has its name.
AXES: Mapping[str, str] = {
    "M": "m",
    "N": "n",
    "K": "k",
    "k": "top_k",
    "nnz": "batch_size*seq_len",
    "seq_len": "num_tokens",
    **dict.fromkeys(("num_tokens", "num_seqs", "num_rows", "pool_size"), "batch_size"),
    "num_q_heads": "num_qo_heads",
    "num_k_heads": "num_kv_heads",
    "head_size": "head_dim",
    "num_q_heads_x_head_size": "num_qo_heads*head_dim",
    "num_k_heads_x_head_size": "num_kv_heads*head_dim",
    "num_speculative": "num_speculate_tokens",
    "qo_len": "s_qo",
    "kv_len": "s_kv",
    "total_q": "batch_size*s_qo",
    "total_k": "batch_size*s_kv",
    "total_seq_len": "batch_size*s_qo",
    "max_pages_per_seq": "max_len",  # of pages of one token
}
# Flags that are an argument with this value.
ARGUMENTS: Mapping[str, Mapping[str, str]] = {
    "no_sf_swizzled_layout": {"is_sf_swizzled_layout": "False"},
    "interleave": {"interleave": "True", "is_neox": "False"},
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
}
