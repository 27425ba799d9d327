"""Exceptions for single APIs, each with its reason: everything else is derived."""

from __future__ import annotations

from collections.abc import Mapping

# References that know less than their API, by a part of the template's name.
WEAK: Mapping[str, str] = {
    "chain_speculative": "it accepts by comparing tokens, and draws nothing",
    "gqa_paged_prefill": "it takes all requests for equally long ones",
    "trtllm_batch_context": "it ignores the lengths of requests",
    "allreduce_fusion": "it knows of one rank alone",
    "pcie_ipc_all_reduce": "it knows of one rank alone",
    "decode_cp_a2a_alltoall": "it knows of one rank alone",
    "decode_cp_a2a_lse_reduce": "it knows of one rank alone",
}
# Sizes of the smoke tier that the common ones do not fit.
SMALL: Mapping[str, Mapping[str, int]] = {
    "gdn_mtp": {"batch_size": 4},  # its reference reads one state for each request, of which `init` makes 8
    "gdn_fused_decode": {"batch_size": 4},  # one page for each request, of which `init` makes 4
    "batch_deepgemm_fp8_nt_groupwise": {"batch_size": 1, "N": 512, "K": 512},  # quantises block by block, in Python
    "trtllm_batch_decode_mla_sparse": {"batch_size": 1, "sparse_mla_top_k": 16},  # gathers 2048 pages for each query
    "fmha_v2_prefill_deepseek": {"batch_size": 1, "num_heads": 4},  # a loop over all queries
    "fmha_v2_prefill_sm120": {"batch_size": 1, "num_heads": 4},  # the same
    "top_k_page_table_transform": {"num_rows": 4},  # a row for each of the 4 requests that `init` makes
}
