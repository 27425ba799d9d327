"""Records of CUPTI whose fields are read together, and those that are left as they are."""

import sys
from enum import IntEnum
from types import ModuleType, SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_flashinfer_perf.kernel_timing.cupti import Copied, activities, copied, launched_in, read_together

np = pytest.importorskip("numpy")

API = np.dtype(
    [("kind", "i4"), ("cbid", "u4"), ("start", "u8"), ("end", "u8"), ("correlation_id", "u4"), ("return_value", "u4")]
)
KERNEL = np.dtype([("kind", "i4"), ("start", "u8"), ("end", "u8"), ("correlation_id", "u4"), ("grid_x", "i4")])


class Api:
    """A record as cupti-python 13.0 has it: memory under a private name, of which each attribute is read anew."""

    layout = API

    def __init__(self, *values):
        self._data = np.array([values], self.layout).view(np.recarray)

    def __getattr__(self, name):
        if name not in self.layout.names:
            raise AttributeError(name)
        return int(self._data[name][0])


class FakeCupti:
    ActivityKind = IntEnum("ActivityKind", "RUNTIME DRIVER CONCURRENT_KERNEL MEMCPY MEMSET")
    ActivityMemcpyKind = IntEnum("ActivityMemcpyKind", {"DTOH": 2, "DTOD": 8})


class Kernel(Api):
    layout, name = KERNEL, "a kernel"


u4, u8 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
made = st.lists(
    st.builds(Api, st.integers(1, 60), u4, u8, u8, u4, u4)
    | st.builds(Kernel, st.integers(1, 60), u8, u8, u4, st.integers(1, 9)),
    max_size=20,
)


@given(made)
def test_copies_are_the_records_in_their_order(own):
    copies = copied(own)
    assert len(copies) == len(own)
    for copy, record in zip(copies, own, strict=True):
        assert isinstance(copy, Copied)
        names = (*record.layout.names, *(["name"] if isinstance(record, Kernel) else []))
        assert [getattr(copy, name) for name in names] == [getattr(record, name) for name in names]


def test_fields_of_a_copy_are_not_read_again_and_those_that_the_record_lacks_are_missing():
    record = Api(4, 211, 10, 13, 7, 0)
    (copy,) = copied([record])
    record._data["start"] = 11
    assert (copy.start, record.start) == (10, 11)
    (copy,) = copied([Kernel(10, 1, 2, 3, 4)])
    with pytest.raises(AttributeError, match="cbid"):
        _ = copy.cbid


class Moved(Api):
    """Says something else than its memory."""

    end = 5


class Shorter(Api):
    """Without a layout of fields."""

    def __init__(self, *values):
        self._data = np.array(values, "u8")


@pytest.mark.parametrize("unlike", [SimpleNamespace(kind=4), Moved(4, 211, 10, 13, 7, 0), Shorter(4, 10, 13)])
def test_records_of_another_form_stay_as_they_are_beside_those_that_are_copied(unlike):
    first, second, third = copied([unlike, Api(4, 211, 10, 13, 7, 0), unlike])
    assert first is third is unlike
    assert (type(second), second.end) == (Copied, 13)


def test_callbacks_get_copies_while_it_lasts_and_cupti_is_put_back(monkeypatch):
    registered, shown, seen = [], [], []
    module = ModuleType("cupti")
    cupti = module.cupti = SimpleNamespace(activity_register_callbacks=lambda *both: registered.append(both))
    register = cupti.activity_register_callbacks
    monkeypatch.setitem(sys.modules, "cupti", module)

    def broken():
        with read_together(shown.extend):
            cupti.activity_register_callbacks("requested", seen.extend)
            raise LookupError

    with pytest.raises(LookupError):
        broken()
    cupti.activity_register_callbacks("requested later", "as it is")
    assert cupti.activity_register_callbacks is register
    (requested, completed), later = registered
    completed([Api(4, 211, 10, 13, 7, 0)])
    assert (requested, later, shown) == ("requested", ("requested later", "as it is"), seen)
    assert type(seen[0]) is Copied


moments = st.integers(0, 40)
spans = st.lists(st.tuples(moments, moments).map(lambda pair: tuple(sorted(pair))), max_size=6)


@given(spans, st.lists(st.tuples(moments, st.integers(1, 9)), max_size=12))
def test_a_call_has_what_was_launched_from_its_begin_to_its_end(calls, launches):
    expected = [{which for when, which in launches if start <= when <= end} for start, end in calls]
    assert launched_in(calls, launches) == expected


def test_what_ran_on_the_device_has_its_name_and_what_it_copied_to_the_host():
    kinds, copies = FakeCupti.ActivityKind, FakeCupti.ActivityMemcpyKind
    times = {"start": 1, "end": 3, "correlation_id": 7, "name": "norm", "bytes": 64}
    made = [*((kind, 0) for kind in kinds if kind != kinds.MEMCPY), *((kinds.MEMCPY, copy) for copy in copies)]
    records = [SimpleNamespace(**times, kind=kind, copy_kind=copy) for kind, copy in made]
    seen = list(activities(FakeCupti(), records))
    assert [(one.name, one.to_host) for one in seen] == [
        ("norm", None),
        ("MEMSET", None),
        ("MEMCPY", 64),
        ("MEMCPY", None),
    ]
    assert {(one.start, one.end, one.correlation_id) for one in seen} == {(1, 3, 7)}
