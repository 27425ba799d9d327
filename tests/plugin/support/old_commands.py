"""Command lines that people paste: those that FlashInfer's documents print, to the letter."""

HEADS = "--num_qo_heads 64 --num_kv_heads 8 --head_dim_qk 128 --head_dim_vo 128"
FP4_MOE = "trtllm_fp4_block_scale_moe --num_tokens 1024 --hidden_size 1024 --intermediate_size 1024 --num_experts 128"
CUTLASS = "cutlass_fused_moe --num_tokens 32 --hidden_size 128 --intermediate_size 128 --num_experts 2 --top_k 2"
GROUPS = "--n_group 8 --topk_group 4 --routed_scaling_factor 2.5 --use_routing_bias --routing_method deepseek_v3"
SAID = "--verbose --generate_repro_command"
SHOWN = "--refcheck --causal --no_cuda_graph --generate_repro_command -v"

LINES = f"""
BatchPrefillWithPagedKVCacheWrapper --backends fa2 cudnn trtllm-gen --page_size 16 --batch_size 16 --s_qo 4096 --s_kv 4096 {HEADS} --random_actual_seq_len --verbose --refcheck --causal --no_cuda_graph --generate_repro_command
BatchDecodeWithPagedKVCacheWrapper --backends fa2 fa2_tc trtllm-gen cudnn --page_size 16 --batch_size 16 --s_qo 1 --s_kv 8192 {HEADS} --random_actual_seq_len --verbose --refcheck --generate_repro_command
mm_fp4 --m 8192 --n 4096 --k 16384 --out_dtype bfloat16 --backends cudnn cutlass trtllm --use_128x4_sf_layout --refcheck {SAID}
{FP4_MOE} --top_k 8 {GROUPS} --use_shuffled_weight {SAID}
{FP4_MOE} --top_k 8 --routing_method topk --use_shuffled_weight --gated_act geglu {SAID}
{FP4_MOE.replace("fp4", "fp8")} --top_k 8 {GROUPS} --use_shuffled_weight {SAID}
{CUTLASS} --cutlass_variant base --input_dtype float16 {SAID}
{CUTLASS} --cutlass_variant base --input_dtype float16 --tp_size 2 --tp_rank 0 {SAID}
BatchPrefillWithPagedKVCacheWrapper --backends fa2 cudnn trtllm-gen --page_size 16 --batch_size 16 --s_qo 1024 --s_kv 1024 --num_qo_heads 8 --num_kv_heads 8 --head_dim_qk 128 --head_dim_vo 128 --random_actual_seq_len {SHOWN}
BatchPrefillWithRaggedKVCacheWrapper --backends fa2 cudnn cutlass --batch_size 16 --s_qo 1024 --s_kv 1024 --num_qo_heads 128 --num_kv_heads 128 --head_dim_qk 192 --head_dim_vo 128  {SHOWN}
BatchDecodeWithPagedKVCacheWrapper --backends fa2 fa2_tc trtllm-gen cudnn --page_size 16 --batch_size 32 --s_qo 1 --s_kv 8192 {HEADS} --refcheck --generate_repro_command -v
bmm_fp8 --backends cudnn cublas cutlass --batch_size 256 --m 1 --n 1024 --k 7168 --input_dtype fp8_e4m3 --mat2_dtype fp8_e4m3 --out_dtype bfloat16 --refcheck -vv --generate_repro_command
"""  # noqa: E501 - as they are printed
ONE_LINE = [f"python3 flashinfer_benchmark.py --routine {line}" for line in LINES.strip().splitlines()]
