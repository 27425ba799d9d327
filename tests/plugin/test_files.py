"""Whole files, which others may read."""

import os
import threading
from pathlib import Path

import pytest

from pytest_flashinfer_perf.files import verify_writable, write_whole


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
