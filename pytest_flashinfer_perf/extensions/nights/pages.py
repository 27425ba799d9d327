"""Make the pages of runs: tables of figures by night and case, and the levels of each case on each card."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from pytest_flashinfer_perf.api import thresholds as core_thresholds
from pytest_flashinfer_perf.extensions.nights import levels
from pytest_flashinfer_perf.extensions.nights.levels import Floats
from pytest_flashinfer_perf.extensions.nights.record import Night, Records
from pytest_flashinfer_perf.extensions.nights.trends import GpuPage, Stretch


def of_records(records: Records, thresholds: core_thresholds.Thresholds) -> list[GpuPage]:
    """A page for each model, those of the newest runs first."""
    ordered = sorted(records.nights.values(), key=lambda night: night.when)
    by_gpu: dict[str, list[Night]] = {}
    for night in ordered:
        by_gpu.setdefault(night.environment.gpu, []).append(night)
    made = [_page(gpu, nights, records, thresholds) for gpu, nights in by_gpu.items()]
    for page in made:
        _divide(page)
    return sorted(made, key=lambda page: page.nights[-1].when, reverse=True)


def _divide(page: GpuPage) -> None:
    """Find the levels of each case on each card; series of one length at a time, which is much faster."""
    for card in dict.fromkeys(one.card for one in page.cards):
        nights = np.array([night for night, one in enumerate(page.cards) if one.card == card])
        logs = np.log(page.values[nights].T)
        there = ~np.isnan(logs)
        lengths = there.sum(axis=1)
        for length in np.unique(lengths[lengths > 0]):
            [cases] = np.nonzero(lengths == length)
            mask = there[cases]
            at = nights[np.nonzero(mask)[1]].reshape(len(cases), length)
            values = logs[cases][mask].reshape(len(cases), length)
            parts = levels.levels(values, [page.least[case] for case in cases])
            page.stretches += map(Stretch, cases.tolist(), [card] * len(cases), at, values, parts)


def _page(gpu: str, nights: list[Night], records: Records, thresholds: core_thresholds.Thresholds) -> GpuPage:
    used = np.unique(np.concatenate([night.cases for night in nights]))
    column = np.full(len(records.cases), -1)
    column[used] = np.arange(len(used))
    shape = (len(nights), len(used))
    tables = {name: np.full(shape, np.nan) for name in ("us", "busy_us", "cycles", "ghz")}
    kernels = np.full(shape, -1, dtype=np.int32)
    for nth, night in enumerate(nights):
        where = column[night.cases]
        for name, table in tables.items():
            table[nth, where] = night.columns[name]
        kernels[nth, where] = night.kernels
    us = tables["us"]
    domains, values = _judged(us, tables)
    keys = list(records.cases)
    cases = [records.cases[keys[case]] for case in used]
    newest = [float(column[~np.isnan(column)][-1]) * 1e-6 for column in us.T]
    return GpuPage(
        gpu=gpu,
        nights=nights,
        cards=[night.environment for night in nights],
        keys=[keys[case] for case in used],
        cases=cases,
        values=values,
        domains=domains,
        us=us,
        ghz=tables["ghz"].astype(np.float32),
        kernels=kernels,
        names=list(records.kernels),
        least=[thresholds.named(case.names).in_log(now) for case, now in zip(cases, newest, strict=True)],
    )


def _judged(us: Floats, tables: Mapping[str, Floats]) -> tuple[list[str], Floats]:
    """Cycles where all nights of a case have them, else busy time where all have it, else the whole time."""
    values, by = us.copy(), np.zeros(us.shape[1], dtype=np.int8)
    for nth, name in enumerate(("busy_us", "cycles"), 1):
        has_all = ((tables[name] > 0) | np.isnan(us)).all(axis=0)
        values[:, has_all] = tables[name][:, has_all]
        by[has_all] = nth
    return [("time", "busy", "cycles")[nth] for nth in by], values
