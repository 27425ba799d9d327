"""The flags of upstream's parsers, as data: what is written here was read in its files, and nothing of them is copied.

Read in `benchmarks/flashinfer_benchmark.py` and `benchmarks/routines/{attention,gemm,moe,moe_utils}.py` of
https://github.com/flashinfer-ai/flashinfer at two commits, whose flags of these families are the same: of v0.6.18rc7,
3b3e688a5427a057dc9ebf4658fe9e31b9714668, and of 2026-08-22, fb28d7242b3506a2348265962041acc1fb56cca4, which has one
routine more.
"""

import argparse

ROUTINES = {
    "attention": """BatchDecodeWithPagedKVCacheWrapper BatchPrefillWithPagedKVCacheWrapper
        BatchPrefillWithRaggedKVCacheWrapper BatchMLAPagedAttentionWrapper""",
    "gemm": """gemm_fp8_nt_groupwise group_gemm_fp8_nt_groupwise bmm_fp8 mm_fp8 bmm_mxfp8 mm_fp4 mm_bf16_fp4 mm_mxfp8
        mm_bf16 bmm_bf16 tinygemm_bf16""",
    "moe": """trtllm_fp4_block_scale_moe trtllm_fp8_block_scale_moe trtllm_fp8_per_tensor_scale_moe cutlass_fused_moe
        cute_dsl_fp4_block_scale_moe b12x_fused_moe unified_nvfp4_moe bgmv_moe""",
    "moe_comm": "moe_a2a_dispatch_combine",
    "allreduce_comm": "allreduce_fusion",
    "mixed_comm": "mixed_comm",
    "norm": """rmsnorm fused_add_rmsnorm gemma_rmsnorm gemma_fused_add_rmsnorm rmsnorm_quant fused_add_rmsnorm_quant
        layernorm_quant rmsnorm_fp4quant add_rmsnorm_fp4quant fused_rmsnorm_silu fused_dit_layernorm
        fused_qk_rmsnorm_rope""",
    "quantization": "mxfp8_quantize mxfp4_quantize nvfp4_quantize nvfp4_batched_quantize",
    "sampling": """softmax sampling_from_probs sampling_from_logits top_k_sampling_from_probs top_p_sampling_from_probs
        top_k_top_p_sampling_from_probs top_k_top_p_sampling_from_logits min_p_sampling_from_probs top_k_renorm_probs
        top_p_renorm_probs top_k_mask_logits chain_speculative_sampling top_k top_k_page_table_transform
        top_k_ragged_transform""",
    "topk_varlen": "top_k_varlen",
    "rope": """apply_rope apply_rope_pos_ids apply_llama31_rope apply_llama31_rope_pos_ids
        apply_rope_with_cos_sin_cache mla_rope_quantize_fp8 rope_quantize_fp8
        rope_quantize_fp8_append_paged_kv_cache""",
    "mamba": "selective_state_update",
    "kda": "recurrent_kda_prefill",
    "gdn": "gated_delta_rule_decode gated_delta_rule_mtp chunk_gated_delta_rule",
    "sparse_attention": "MSAProxyScore MSASparseAttention MSASparseDecode MSAPipeline",
}
# A main of September 2026, which is stored without its commit, has these too.
ROUTINES_SINCE = {
    "trtllm_batch_decode_sparse_mla_dsv4",
    "cute_dsl_bf16_moe",
    "alphamoe_nvfp4_aligned_moe",
    "unified_moe",
}

# What a line of the other families has to have, at both commits; all are integers.
LEAST = {
    "norm": "--batch_size 4 --hidden_size 64",
    "quantization": "--m 4 --k 64",
    "sampling": "--batch_size 4 --vocab_size 128",
    "topk_varlen": "--batch_size 4 --max_seq_len 2048",
    "rope": "--batch_size 2 --seq_len 8 --num_qo_heads 4 --num_kv_heads 2 --head_dim 64",
    "mamba": "--batch_size 4 --nheads 8 --dim 64 --dstate 128",
    "gdn": "--batch_size 4",
    "kda": "--batch_size 4 --s_qo 64",
    "sparse_attention": "",
}
WITHOUT_VOCABULARY = ("top_k_page_table_transform", "top_k_ragged_transform")

SWITCHES = {
    "general": """no_cuda_graph use_cupti use_cuda_events refcheck allow_output_mismatch generate_repro_command
        enable_pdl""",
    "attention": "causal random_actual_seq_len autotune",
    "gemm": "use_128x4_sf_layout use_nvfp4 autotune bias",
    "moe": """use_shuffled_weight use_routing_bias use_routing_scales_on_input autotune use_functional_api
        quantized_input""",
}
REQUIRED = {  # integers
    "attention": "batch_size s_kv num_qo_heads num_kv_heads",
    "gemm": "m n k",
    "moe": "num_tokens hidden_size num_experts top_k intermediate_size",
}
# By default None, which argparse says of all types.
UNSAID = {
    "general": {"output_path": str, "autotune_cache": str, "case_tag": str},
    "attention": {
        "head_dim_qk": int,
        "head_dim_vo": int,
        "head_dim_ckv": int,
        "head_dim_kpe": int,
        "out_dtype": str,
        "mla_is_var_seq": str,
        "mla_cute_dsl_impl": str,
    },
    "gemm": {},
    "moe": {"n_group": int, "topk_group": int, "local_num_experts": int},
}
DEFAULTS = {
    "general": {"random_seed": 42, "num_iters": 30, "dry_run_iters": 5, "repro_command": ""},
    "attention": {"page_size": 0, "s_qo": 1, "q_dtype": "bfloat16", "kv_dtype": "bfloat16", "spec_dec_mask": "causal"},
    "gemm": {
        "batch_size": 1,
        "tile_size": 128,
        "group_size": 1,
        "scale_major_mode": "MN",
        "input_dtype": "fp8_e4m3",
        "mat2_dtype": "fp8_e4m3",
        "out_dtype": "bfloat16",
        "mma_sm": 1,
    },
    "moe": {
        "input_dtype": "bfloat16",
        "routed_scaling_factor": 2.5,
        "local_expert_offset": 0,
        "routing_method": "deepseek_v3",
        "weight_layout": 0,
        "weight_dtype": "bfloat16",
        "activation-type": "Swiglu",
        "fp4_mode": "nvfp4",
        "b12x_quant_mode": "nvfp4",
        "cutlass_variant": "base",
        "tp_size": 1,
        "tp_rank": 0,
        "ep_size": 1,
        "ep_rank": 0,
        "rank": 32,
        "num_loras": 8,
        "num_slices": 1,
    },
}
CHOICES = {
    "spec_dec_mask": "causal full",
    "mla_is_var_seq": "true false auto",
    "mla_cute_dsl_impl": "auto modular monolithic",
    "scale_major_mode": "MN K",
    "mma_sm": "1 2",
    "routing_method": "renormalize deepseek_v3 llama4 renormalize_naive topk",
    "weight_layout": "0 1 2",
    "fp4_mode": "nvfp4 mxfp4_mxfp8 mxfp4_bf16",
    "b12x_quant_mode": "nvfp4 w4a16",
    "cutlass_variant": "base fp8 nvfp4",
    # of flashinfer/tllm_enums.py, whose names it takes in any case
    "activation-type": "Gelu Relu Silu Swiglu Geglu SwigluBias Relu2 SwigluStep GegluTanh Identity Situ InvalidType",
}
BACKENDS = {
    "attention": """fa2 fa2_tc fa3 auto cudnn cudnn-native cutlass trtllm-gen trtllm-native trtllm-fmha-v2
        trtllm-gen-native cute-dsl prims-ts prims_ts""",
    "gemm": "cudnn cublas trtllm cutlass tgv cublaslt cute-dsl b12x auto tinygemm cutile trtllm_low_latency",
}
# Of `full_output_columns` in `routines/flashinfer_benchmark_utils.py`, some of which stand in several groups.
COLUMNS = {
    "main": """routine median_time std_time tflops tb_per_sec backend resolved_backend
        s_qo s_kv head_dim_qk head_dim_vo head_dim_ckv head_dim_kpe causal q_dtype kv_dtype avg_actual_seq_len
        random_actual_seq_len is_var_seq cute_dsl_impl n group_size tile_size scale_major_mode mma_sm
        use_128x4_sf_layout use_nvfp4 bias num_tokens intermediate_size num_experts top_k n_group topk_group
        routed_scaling_factor local_expert_offset local_num_experts routing_method use_shuffled_weight weight_layout
        use_routing_bias use_routing_scales_on_input weight_dtype activation_type fp4_mode cold_l2_cache
        cutlass_variant quantized_input tp_size tp_rank ep_size ep_rank num_tokens num_experts top_k ep_size
        max_num_tokens num_tokens ar_backend pattern layout_code local_bs op_name mode_name local_tp_size local_dp_size
        inter_tp_size inter_dp_size num_heads scale eps use_global_scale dit_mode ppf pph ppw alignment global_scale
        sf_layout do_shuffle sf_vec_size vocab_size top_k top_p min_p temperature num_speculate_tokens
        filter_apply_order max_len num_rows max_seq_len seq_len head_dim rotary_dim no_rope_dim rope_theta rope_scale
        interleave kv_layout nheads dim dstate ngroups cache_steps state_dtype weight_dtype has_z dt_softplus
        num_q_heads num_k_heads num_v_heads head_size state_layout pool_mode update_state use_qk_l2norm kda_variant
        kda_variant_policy sm_count packed has_initial_state topk max_k_tiles total_q total_kv batch_size hidden_size
        input_dtype out_dtype quant_dtype m k num_qo_heads num_kv_heads page_size enable_pdl is_sf_swizzled_layout
        refcheck no_cuda_graph use_cupti allow_output_mismatch random_seed case_tag generate_repro_command
        repro_command""",
    # What the file has in that main of September 2026, between the ones above.
    "since": """resolved_backend autotuned autotune_winner autotune_tactic s_qo kv_dtype v_dtype avg_actual_seq_len
        cute_dsl_impl timing_metric row_activity_mode calls_per_sample swa_topk compressed_topk compressed_kv_len
        compressed_page_size n top_k block_m n_group activation_type quant_variant autotune tactic refcheck_passed
        fp4_mode cold_l2_cache prequantized_median_time prequantized_std_time cutlass_variant""",
}
SHORT = {"num_iters": "-n", "dry_run_iters": "-d"}


class _Parser(argparse.ArgumentParser):
    def error(self, message):
        raise ValueError(message)


def parser(family):
    """A parser that takes and refuses what upstream's does in a line of this family."""
    made = _Parser(add_help=False)
    names = [name for listed in ROUTINES.values() for name in listed.split()]
    made.add_argument("--routine", "-R", required=True, choices=names)
    made.add_argument("--verbose", "-v", action="count", default=0)
    if family in BACKENDS:
        made.add_argument("--backends", nargs="+", choices=BACKENDS[family].split())
    for group in ("general", family):
        _add(made, group)
    return made


def _add(made, group):
    for name in SWITCHES[group].split():
        made.add_argument(f"--{name}", action="store_true")
    for name in REQUIRED.get(group, "").split():
        made.add_argument(f"--{name}", type=int, required=True)
    for name, kind in UNSAID[group].items():
        made.add_argument(f"--{name}", type=kind, choices=_choices(name, kind))
    for name, default in DEFAULTS[group].items():
        words = [f"--{name}", *([SHORT[name]] if name in SHORT else [])]
        made.add_argument(*words, type=type(default), default=default, choices=_choices(name, type(default)))


def _choices(name, kind):
    return [kind(word) for word in CHOICES[name].split()] if name in CHOICES else None
