"""Rows as `flashinfer_benchmark.py` writes them: its columns, each once, and ours behind them."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import pytest

from pytest_flashinfer_perf.config.usage import not_written, verify_output
from pytest_flashinfer_perf.files import write_whole
from pytest_flashinfer_perf.running import attempts, reports
from pytest_flashinfer_perf.runs.formatting import counted
from pytest_flashinfer_perf.runs.row import Row

UPSTREAM = """
    routine median_time std_time tflops tb_per_sec backend resolved_backend
    s_qo s_kv head_dim_qk head_dim_vo head_dim_ckv head_dim_kpe causal q_dtype kv_dtype avg_actual_seq_len
    random_actual_seq_len is_var_seq cute_dsl_impl
    n group_size tile_size scale_major_mode mma_sm use_128x4_sf_layout use_nvfp4 bias
    num_tokens intermediate_size num_experts top_k n_group topk_group routed_scaling_factor local_expert_offset
    local_num_experts routing_method use_shuffled_weight weight_layout use_routing_bias use_routing_scales_on_input
    weight_dtype activation_type fp4_mode cold_l2_cache cutlass_variant quantized_input tp_size tp_rank ep_size ep_rank
    batch_size hidden_size input_dtype out_dtype quant_dtype m k num_qo_heads num_kv_heads page_size enable_pdl
    is_sf_swizzled_layout refcheck no_cuda_graph use_cupti allow_output_mismatch random_seed case_tag
    generate_repro_command repro_command
""".split()  # noqa: SIM905 - as upstream groups them
OURS = """
    case status spread sol_pct bound flops bytes instrument cold_l2 refcheck_worst_abs refcheck_worst_rel tactic
    active_experts largest_load sm_ghz device_name gpu_uuid repro
""".split()  # noqa: SIM905 - one line for each kind


def columns(row: Row) -> dict[str, Any]:
    """Times in milliseconds; empty where a column does not apply to a routine."""
    how = row.provenance
    cells = {
        **row.params,
        **row.extra_info(),
        "median_time": 1e3 * row.median,
        "std_time": 1e3 * row.stats.stddev,
        "spread": row.spread,
        "cold_l2_cache": how.cold_l2 != "none",
        "refcheck": row.check.refcheck in ("passed", "sampled", "wrong"),
        "no_cuda_graph": not how.cuda_graph,
        "use_cupti": how.instrument == "cupti",
        "random_seed": row.setup.seed,
        "generate_repro_command": True,
        "repro_command": row.setup.repro_upstream,
    }
    return {name: cells.get(name) for name in (*UPSTREAM, *OURS)}


def _written(cells: Any) -> str:
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue()


class CsvFile:
    """Each row is there as soon as it is measured: what a killed run had is kept."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines: dict[str, str] = {}
        self._lost: OSError | None = None
        self._notes: list[str] = []

    def pytest_sessionstart(self) -> None:
        verify_output("--perf-csv", self._path)
        self._write()

    def _write(self) -> None:
        write_whole(self._path, "".join([_written((*UPSTREAM, *OURS)), *self._lines.values()]))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if self._lost is None:
            try:
                self._follow(report)
            except OSError as error:
                self._lost = error

    def _follow(self, report: pytest.TestReport) -> None:
        if attempts.begins(report) and self._lines.pop(report.nodeid, None) is not None:
            self._write()
        row = reports.of(report).row
        if row:
            line = _written(columns(row).values())
            with self._path.open("a", encoding="utf-8") as file:
                file.write(line)
            self._lines[report.nodeid] = line

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        self._notes.append(f"wrote {counted(len(self._lines), 'row')} to {self._path}")
        if self._lost is not None:
            self._notes.append(not_written(session, "--perf-csv", self._lost))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for note in self._notes:
            terminalreporter.write_line(note)
