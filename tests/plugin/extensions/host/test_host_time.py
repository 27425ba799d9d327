"""What is told of the host's time, and when two are comparable."""

from pytest_flashinfer_perf.extensions.host import host_time
from pytest_flashinfer_perf.extensions.host.host_time import HostLine, HostTime


def test_host_times_are_comparable_by_what_their_core_takes_for_a_reference():
    seen = HostTime(50.0, (60.0, 50.0), waits=False, plan_us=9.0, plans_us=(10.0, 9.0), references_us=(40.0, 50.0))
    assert (seen.comparable_us, seen.comparable_plan_us) == (25.0, None)
    assert HostTime(1.0, (0.0,), waits=False, references_us=(1.0,)).comparable_us is None
    assert (host_time.outlasts(seen, 49e-6), host_time.outlasts(seen, 50e-6)) == (True, False)
    lines = (HostLine("allocation", "a.py:3", 2), HostLine("allocation", None, 1), HostLine("copy to host", "b", 1))
    told = HostTime(1.0, (), waits=False, lines=lines)
    assert host_time.places(told, "allocation") == ["2 x a.py:3", "1 x a line that could not be seen"]
