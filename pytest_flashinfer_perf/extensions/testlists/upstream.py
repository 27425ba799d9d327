"""The routines and backends of `flashinfer_benchmark.py`, and which of them only one side has."""

from __future__ import annotations

SCRIPT = "flashinfer_benchmark.py"
COMMUNICATION = ("moe_a2a_dispatch_combine", "allreduce_fusion", "mixed_comm")  # between several GPUs
ELSEWHERE = {  # what FlashInfer has between GPUs and no case here, and why
    "mixed_comm": "{} needs NVLink multicast, which can put GPUs out of service",
    "decode_cp_a2a_alltoall": "{} needs memory of an NVLink fabric over several machines (MNNVL)",
    "decode_cp_a2a_lse_reduce": "{} is not timed by a case: call it in a test with perf_ranks, by perf.time",
}
# Its routines, in 0.6.18 and since, beside those of `RUNS`. Where no routine's file here declares one of a single GPU,
# it may be an API with a trace template.
ROUTINES = frozenset(COMMUNICATION) | {
    routine
    for line in (
        "trtllm_batch_decode_sparse_mla_dsv4 MSAProxyScore MSASparseAttention MSASparseDecode MSAPipeline",
        "cute_dsl_bf16_moe alphamoe_nvfp4_aligned_moe unified_moe cute_dsl_fp4_block_scale_moe b12x_fused_moe",
        "unified_nvfp4_moe bgmv_moe",
        "bmm_mxfp8 mm_bf16_fp4 mm_mxfp8 tinygemm_bf16",
        "rmsnorm fused_add_rmsnorm gemma_rmsnorm gemma_fused_add_rmsnorm rmsnorm_quant fused_add_rmsnorm_quant",
        "layernorm_quant rmsnorm_fp4quant add_rmsnorm_fp4quant fused_rmsnorm_silu fused_dit_layernorm",
        "fused_qk_rmsnorm_rope",
        "mxfp8_quantize mxfp4_quantize nvfp4_quantize nvfp4_batched_quantize",
        "softmax sampling_from_probs sampling_from_logits top_k_sampling_from_probs top_p_sampling_from_probs",
        "top_k_top_p_sampling_from_probs top_k_top_p_sampling_from_logits min_p_sampling_from_probs",
        "top_k_renorm_probs top_p_renorm_probs top_k_mask_logits chain_speculative_sampling",
        "top_k top_k_page_table_transform top_k_ragged_transform top_k_varlen",
        "apply_rope apply_rope_pos_ids apply_llama31_rope apply_llama31_rope_pos_ids apply_rope_with_cos_sin_cache",
        "mla_rope_quantize_fp8 rope_quantize_fp8 rope_quantize_fp8_append_paged_kv_cache",
        "selective_state_update gated_delta_rule_decode gated_delta_rule_mtp chunk_gated_delta_rule",
        "recurrent_kda_prefill",
    )
    for routine in line.split()
}
# Of families and routines whose lines may name backends.
DEFAULT_BACKEND = {"attention": "fa2", "gemm": "cudnn", "mm_fp8": "trtllm_low_latency"}
# Which backends the script times of what is measured here, in 0.6.18 or since.
RUNS: dict[str, frozenset[str]] = {
    routine: frozenset(backends.split())
    for routine, backends in {
        "BatchDecodeWithPagedKVCacheWrapper": "fa2 fa2_tc auto cudnn trtllm-gen trtllm-native prims-ts",
        "BatchPrefillWithPagedKVCacheWrapper": "fa2 fa3 auto cudnn cudnn-native trtllm-gen trtllm-native "
        "trtllm-fmha-v2 prims-ts",
        "BatchPrefillWithRaggedKVCacheWrapper": "fa2 fa3 cudnn cudnn-native cutlass cute-dsl trtllm-native "
        "trtllm-fmha-v2 prims-ts",
        "BatchMLAPagedAttentionWrapper": "fa2 fa3 cutlass trtllm-native cute-dsl auto prims-ts",
        "gemm_fp8_nt_groupwise": "cutlass trtllm cutile",
        "group_gemm_fp8_nt_groupwise": "cutlass",
        "bmm_fp8": "cudnn cublas cutlass cute-dsl auto",
        "bmm_bf16": "cudnn cutlass auto",
        "mm_fp8": "trtllm_low_latency",
        "mm_fp4": "cudnn cutlass trtllm cute-dsl b12x auto",
        "mm_bf16": "cudnn cutlass tgv cublaslt tinygemm cutile cute-dsl auto",
        "trtllm_fp4_block_scale_moe": "trtllm",
        "trtllm_fp8_block_scale_moe": "trtllm",
        "trtllm_fp8_per_tensor_scale_moe": "trtllm",
        "cutlass_fused_moe": "cutlass",
    }.items()
}
# Names of backends that no routine here has, and that its parser or a routine of its own takes.
BACKENDS = frozenset(["cute-dsl-prims", "alphamoe", "unified", "cuda", "flashinfer", "triton", "fla"])
OF_RECORDINGS = ("actual_seq_lens_kv", "actual_seq_lens_q", "expert_counts")
FLAGS_HERE_ONLY = frozenset(["return_lse", "empty_first", "ragged", "expert_load", "use_mxfp4", *OF_RECORDINGS])
VALUES_HERE_ONLY: dict[str, tuple[str, ...]] = {"cutlass_variant": ("deepseek_fp8_block_scale", "w4a8")}


def may_be_api(routine: str) -> bool:
    """Whether it is one of the script's routines on a single GPU, beside those of `RUNS`."""
    return routine in ROUTINES and routine not in COMMUNICATION
