"""Whole files, which others may read."""

from pytest_flashinfer_perf.files import write_whole


def test_a_file_is_as_readable_as_any_other_that_is_made_here(tmp_path):
    (tmp_path / "usual").write_text("")
    write_whole(tmp_path / "deep" / "ours", "text\n")
    assert (tmp_path / "deep" / "ours").stat().st_mode == (tmp_path / "usual").stat().st_mode
    assert (tmp_path / "deep" / "ours").read_text() == "text\n"
