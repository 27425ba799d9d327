"""Lines of `flashinfer_benchmark.py`."""

GEMM = "--routine bmm_fp8 --batch_size 1 --m 4 --n 16 --k 16 --backends torch"
DECODE = "--routine BatchDecodeWithPagedKVCacheWrapper --page_size 4 --batch_size 1 --s_kv 8 --num_qo_heads 2"
DECODE += " --num_kv_heads 1 --head_dim_qk 16 --backends torch"
LINES = f"""
# a comment

{GEMM} --num_iters 3 --dry_run_iters 0 -vv --refcheck
{GEMM} -n 4
  {DECODE} -n 2 --case_tag "two words"
"""
