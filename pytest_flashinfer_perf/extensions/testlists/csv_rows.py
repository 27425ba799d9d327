"""CSV rows with the columns of `flashinfer_benchmark.py`, each once, followed by ours."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import pytest

from pytest_flashinfer_perf.api import Row, file_io, formatting, printing, reports, usage

# The CSV columns of `flashinfer_benchmark.py` in its order, each once.

GROUPS = {
    "perf": """routine median_time std_time tflops tb_per_sec backend resolved_backend autotuned autotune_winner
        autotune_tactic""",
    "attention": """s_qo s_kv head_dim_qk head_dim_vo head_dim_ckv head_dim_kpe causal q_dtype kv_dtype v_dtype
        avg_actual_seq_len random_actual_seq_len is_var_seq cute_dsl_impl timing_metric row_activity_mode
        calls_per_sample""",
    "dsv4_sparse_mla": "swa_topk compressed_topk compressed_kv_len compressed_page_size",
    "gemm": "n group_size tile_size scale_major_mode mma_sm use_128x4_sf_layout use_nvfp4 bias",
    "moe": """num_tokens intermediate_size num_experts top_k block_m n_group topk_group routed_scaling_factor
        local_expert_offset local_num_experts routing_method use_shuffled_weight weight_layout use_routing_bias
        use_routing_scales_on_input weight_dtype activation_type quant_variant autotune tactic refcheck_passed fp4_mode
        cold_l2_cache prequantized_median_time prequantized_std_time cutlass_variant quantized_input tp_size tp_rank
        ep_size ep_rank""",
    "moe_comm": "max_num_tokens",
    "allreduce_comm": "ar_backend pattern layout_code",
    "mixed_comm": "local_bs op_name mode_name local_tp_size local_dp_size inter_tp_size inter_dp_size",
    "norm": "num_heads scale eps use_global_scale dit_mode ppf pph ppw",
    "quantization": "alignment global_scale sf_layout do_shuffle sf_vec_size",
    "sampling": """vocab_size top_p min_p temperature num_speculate_tokens filter_apply_order max_len
        num_rows""",
    "topk_varlen": "max_seq_len",
    "rope": "seq_len head_dim rotary_dim no_rope_dim rope_theta rope_scale interleave kv_layout",
    "mamba": "nheads dim dstate ngroups cache_steps state_dtype has_z dt_softplus",
    "gdn": "num_q_heads num_k_heads num_v_heads head_size state_layout pool_mode update_state use_qk_l2norm",
    "kda": "kda_variant kda_variant_policy sm_count packed has_initial_state",
    "msa": "topk max_k_tiles total_q total_kv",
    "general": """batch_size hidden_size input_dtype out_dtype quant_dtype m k num_qo_heads num_kv_heads page_size
        enable_pdl is_sf_swizzled_layout refcheck no_cuda_graph use_cupti allow_output_mismatch random_seed case_tag
        generate_repro_command repro_command""",
}
NAMES = tuple(name for names in GROUPS.values() for name in names.split())


OURS = """
    case status spread sol_pct bound flops bytes instrument cold_l2 refcheck_worst_abs refcheck_worst_rel
    active_experts largest_load sm_ghz device_name gpu_uuid repro
""".split()  # noqa: SIM905 - one line for each kind
COLUMNS = (*NAMES, *OURS)
ANSWERS = {"passed": True, "sampled": True, "wrong": False}


def columns(row: Row) -> dict[str, Any]:
    """The cells of a row, with times in milliseconds; None in columns that do not apply to its routine."""
    how, checked = row.provenance, row.check.refcheck or ""
    winner, _, tactic = (row.setup.tactic or "").partition(" ")
    tuned = {"autotune_winner": winner, "autotune_tactic": tactic} if row.setup.autotuned and winner else {}
    cells = {
        **row.params,
        **row.extra_info(),
        "median_time": 1e3 * row.median,
        "std_time": 1e3 * row.stats.stddev,
        "cold_l2_cache": how.cold_l2 != "none",
        "refcheck": checked in ANSWERS,
        "no_cuda_graph": not how.cuda_graph,
        "use_cupti": how.instrument == "cupti",
        "random_seed": row.setup.seed,
        "generate_repro_command": True,
        "repro_command": row.setup.repro_upstream,
        "use_nvfp4": not row.params["use_mxfp4"] if "use_mxfp4" in row.params else None,
        "is_var_seq": row.params.get("mla_is_var_seq"),
        "cute_dsl_impl": row.params.get("mla_cute_dsl_impl"),
        "refcheck_passed": ANSWERS.get(checked),
        **tuned,
    }
    return {name: cells.get(name) for name in COLUMNS}


def _written(cells: Any) -> str:
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue()


class CsvFile:
    """Writes each row as soon as it is measured, so that a killed run leaves its rows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines: dict[str, str] = {}
        self._lost: OSError | None = None
        self._notes: list[str] = []

    def pytest_sessionstart(self) -> None:
        with usage.errors_of_use(OSError):
            self._write()

    def _write(self) -> None:
        file_io.write_whole(self._path, "".join([_written(COLUMNS), *self._lines.values()]))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if self._lost is not None:
            return
        try:
            if reports.begins_attempt(report) and self._lines.pop(report.nodeid, None) is not None:
                self._write()
            row = reports.of(report).row
            if row:
                line = _written(columns(row).values())
                file_io.append_whole(self._path, line)
                self._lines[report.nodeid] = line
        except OSError as error:
            self._lost = error

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        self._notes.append(f"wrote {formatting.counted(len(self._lines), 'row')} to {self._path}")
        if self._lost is not None:
            self._notes.append(usage.not_written(session, "--perf-csv", self._lost))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        printing.write_lines(terminalreporter, self._notes)
