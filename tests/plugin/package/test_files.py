"""Whole files, which others may read."""

import os
import resource
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest

from pytest_flashinfer_perf.files import (
    FileError,
    append_whole,
    read_json,
    verify_outputs,
    verify_writable,
    write_json,
    write_whole,
)
from pytest_flashinfer_perf.settings import project_file


def test_a_file_is_as_readable_as_any_other_that_is_made_here(tmp_path):
    (tmp_path / "usual").write_text("")
    write_whole(tmp_path / "deep" / "ours", "text\n")
    assert (tmp_path / "deep" / "ours").stat().st_mode == (tmp_path / "usual").stat().st_mode
    assert (tmp_path / "deep" / "ours").read_text() == "text\n"


def test_a_link_stays_one(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "file")
    write_whole(tmp_path / "link", "text\n")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_text() == "text\n"


def test_what_is_no_file_is_written_to(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    read = []
    reader = threading.Thread(target=lambda: read.append((tmp_path / "pipe").read_text()))
    reader.start()
    write_whole(tmp_path / "pipe", "text\n")
    reader.join()
    assert read == ["text\n"]
    assert (tmp_path / "pipe").is_fifo()


def test_links_in_a_circle_are_an_error_like_any_other(tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(OSError, match=r"'.*loop'"):
        write_whole(tmp_path / "loop", "text")
    with pytest.raises(FileError, match=r"--output: .*'.*loop'"):
        verify_outputs({"--output": tmp_path / "loop"}, [tmp_path])


@pytest.mark.parametrize("act", [verify_writable, lambda path: write_whole(path, "text")])
def test_an_error_names_what_was_asked_for(act):
    with pytest.raises(OSError, match="'/proc/report'"):
        act(Path("/proc/report"))


def test_to_look_whether_a_file_can_be_written_writes_none(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    verify_writable(tmp_path / "pipe")
    verify_writable(tmp_path / "deep" / "ours")
    (tmp_path / "kept").write_text("kept")
    verify_writable(tmp_path / "kept")
    assert (tmp_path / "kept").read_text() == "kept"
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["deep", "kept", "pipe"]


def test_a_folder_is_an_error_that_leaves_nothing(tmp_path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError):
        write_whole(tmp_path / "folder", "text\n")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


@contextmanager
def little_space(size):
    """No file may grow beyond that, as on a disk that is full."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.parametrize("name", ["new", "old", "link"])
@pytest.mark.parametrize("length", [2000, 2_000_000])
def test_what_cannot_be_written_leaves_what_was_there(tmp_path, name, length):
    (tmp_path / "old").write_text("older")
    (tmp_path / "link").symlink_to("old")
    with little_space(1000), pytest.raises(OSError, match=f"too large: '{tmp_path / name}'"):
        write_whole(tmp_path / name, "x" * length)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "old"]
    assert (tmp_path / "link").read_text() == "older"


@pytest.mark.parametrize("before", ["", "a line\n"])
def test_what_cannot_be_added_whole_is_not_added(tmp_path, before):
    """As much as there was room for was written, and of a new file it stayed."""
    path = tmp_path / "rows"
    if before:
        append_whole(path, before)
    with little_space(100), pytest.raises(OSError, match=f"'{path}'"):
        append_whole(path, "x" * 2000)
    assert path.read_text() == before


def test_standard_output_is_written_to_wherever_it_goes(capfd):
    write_whole(Path("/dev/stdout"), "first\n")
    write_whole(Path("/dev/stdout"), "second\n")
    assert capfd.readouterr().out == "first\nsecond\n"


def test_json_has_no_number_that_is_none(tmp_path):
    write_json(tmp_path / "made.json", {"a": [float("nan"), {"b": (float("-inf"), 1.5)}], float("nan"): object})
    assert read_json(tmp_path / "made.json") == {
        "a": [None, {"b": [None, 1.5]}],
        "nan": "UNSERIALIZABLE[<class 'object'>]",
    }


def test_a_device_that_says_something_is_no_file():
    """It may have no end, as /dev/zero has none."""
    assert read_json(Path("/dev/null")) is None
    with pytest.raises(FileError, match=r"/dev/zero: cannot be read as JSON: .*is a device and no file"):
        read_json(Path("/dev/zero"))


def test_a_byte_order_mark_is_no_part_of_a_text(tmp_path):
    (tmp_path / "marked.json").write_text("{}", encoding="utf-8-sig")
    assert read_json(tmp_path / "marked.json") == {}
    (tmp_path / "flashinfer-perf.toml").write_text('[thresholds]\n"*" = {}', encoding="utf-8-sig")
    assert project_file.find(tmp_path).section("thresholds", ["slower"]) == {"*": {}}
