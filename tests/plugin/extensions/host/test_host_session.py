"""The gate of a session, about the time of the host."""

import json

import gate_sessions
from gate_sessions import THRESHOLDS, TOLD, as_told
from made import saved

from pytest_flashinfer_perf.extensions.host import host
from pytest_flashinfer_perf.extensions.host.host_time import HostTime
from pytest_flashinfer_perf.rows import fields

HOSTS = """
import json
import os
import pathlib

from pytest_flashinfer_perf.extensions.host.host_time import HostTime
from pytest_flashinfer_perf.extensions.host import host


def told(_target, _device, _on_device, _calls):
    us = json.loads(pathlib.Path("hosts.json").read_text())["FLASHINFER_PERF_CONFIRMS" in os.environ]
    return HostTime(us, (0.99 * us, us, 1.01 * us), False, references_us=(20.0,) * 3), ""


host.measured = told
"""


def test_what_is_slower_on_the_host_alone_is_measured_again(session, pytester, monkeypatch):
    monkeypatch.setattr(host, "measured", host.measured)
    gate = gate_sessions.prepared(session, pytester, monkeypatch)
    pytester.makeconftest(TOLD + HOSTS)
    of_host = THRESHOLDS + '"*it[[]d[]]" = { slower_host = "10%" }\n'
    pytester.makefile(".toml", **{"flashinfer-perf": of_host})
    (pytester.path / "hosts.json").write_text(json.dumps([500, 500]))
    before = as_told("d", 100)
    before["extra_info"]["host"] = fields.written(
        HostTime(50.0, (49.5, 50.0, 50.5), waits=False, references_us=(20.0,) * 3)
    )
    saved(pytester.path / "base.json", before, machine={})
    done = gate("--perf-gate=base.json", "-v", d=100)
    assert (done.code, done.outcomes) == (1, {"passed": 1})
    shown = " ".join(done.out.partition("flashinfer-perf gate")[2].split())
    assert "slower-host: slower on the host alone" in shown
    assert "measured again: +900.00 %, +900.00 %" in shown
