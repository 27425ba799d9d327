"""Files of runs: found by path, folder or name, read, and refused with the file's name where they are none."""

import re
from datetime import datetime, timezone

import pytest
from made import plain, row, run, saved, typed

from pytest_flashinfer_perf.rows import run_file
from pytest_flashinfer_perf.rows.row import Identity
from pytest_flashinfer_perf.rows.run_file import Block, Commit, RunError, Unmeasured


def test_files_and_folders_of_them_are_read_in_their_order(tmp_path):
    one = saved(tmp_path / "one.json", row())
    saved(tmp_path / "more" / "b.json", row(us=101.0))
    saved(tmp_path / "more" / "deeper" / "a.json", row(us=102.0))
    (tmp_path / "more" / "verdicts.json").write_text('{"flashinfer_perf_gate": 1}')
    read = run_file.read_all([one, tmp_path / "more"])
    assert [run.source.rpartition("/")[2] for run in read] == ["one.json", "b.json", "a.json"]
    assert read[0].when == datetime(2026, 11, 20, 12, tzinfo=timezone.utc)


@pytest.mark.parametrize("name", ["main", "0002_main", "0002"])
def test_a_stored_name_is_its_latest(tmp_path, name):
    for number in ("0001_main", "0002_main", "0003_other", "0004_mainly"):
        saved(tmp_path / "Linux" / f"{number}.json", row())
    [read] = run_file.read_all([name], storage=run_file.storage_of(f"file://{tmp_path}"))
    assert read.source.endswith("0002_main.json")


NO_RUN = "not a file of pytest-benchmark, it has no benchmarks"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "cannot be read as JSON"),
        ("", "is empty: pytest-benchmark writes nothing where no benchmark was run"),
        ("[1]", NO_RUN),
        ('{"benchmarks": {}}', NO_RUN),
        ('{"benchmarks": [{"name": "x"}]}', "benchmark 0 lacks fullname"),
        ('{"benchmarks": [], "datetime": "yesterday"}', "datetime: Invalid isoformat string: 'yesterday'"),
        ('{"benchmarks": [], "machine_info": {"driver": [1]}}', "machine_info: driver must be text, got [1]"),
        ('{"benchmarks": [], "machine_info": {"cpu": 3}}', "machine_info: cpu must be an object, got 3"),
        (
            '{"benchmarks": [], "flashinfer_perf": {"schema": 3}}',
            "it has schema 3, this version reads 2: update it",
        ),
    ],
)
def test_what_cannot_be_read_names_the_file(tmp_path, text, sentence):
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(RunError, match=f"^{re.escape(str(tmp_path / 'run.json'))}:? {re.escape(sentence)}"):
        run_file.read_all([tmp_path / "run.json"])


def test_nothing_to_read_is_an_error(tmp_path):
    for names, sentence in (
        ([], "no files"),
        ([tmp_path], "in this folder"),
        (["a/b"], "no such file"),
        (["x"], "name"),
    ):
        with pytest.raises(RunError, match=sentence):
            run_file.read_all(names, storage=tmp_path / "none")


NOON, LATER = "2026-11-20T12:00:00+00:00", "2026-11-20T12:00:01+00:00"


@pytest.mark.parametrize(
    ("of_row", "of_file", "same"),
    [
        ({}, {"when": NOON, "commit": "abc"}, True),
        ({}, {"when": LATER}, False),
        ({"case_s": 0.3210987}, {"when": LATER}, True),
        ({"case_s": 0.4210987}, {"when": LATER}, False),
        ({"us": 100.1}, {"when": NOON}, False),
    ],
)
def test_one_run_in_two_files_is_one_process(tmp_path, of_row, of_file, same):
    """Of a run that was both saved and written the files differ in their dates, and agree in what each case took."""
    beside = row("without_a_time")
    saved(tmp_path / "a.json", row(**({"case_s": 0.3210987} if "case_s" in of_row else {})), beside, when=NOON)
    saved(tmp_path / "b.json", row(**of_row), beside, **of_file)
    if not same:
        assert len(run_file.read_all([tmp_path])) == 2
        return
    with pytest.raises(RunError, match=r"b\.json is the same run as .*a\.json: a process counts once, leave one out"):
        run_file.read_all([tmp_path])


def test_old_and_plain_files_are_read():
    """Without an offset, a commit, or our key."""
    bare = {"benchmarks": [plain()], "machine_info": {"cpu": {"brand_raw": "Xeon"}}, "datetime": "2020-01-02T03:04:05"}
    read = run_file.parse(bare, "old")
    [only] = read.rows
    assert (only.case, only.provenance.instrument) == ("t.py::test_plain", "wall")
    assert (read.model(only), read.commit) == ("Xeon", Commit())
    assert read.when.tzinfo is timezone.utc
    assert run_file.parse({"benchmarks": [], "commit_info": []}, "bare").when.year == 1970
    with pytest.raises(RunError, match="old is no run of this plugin: write one with pytest"):
        run_file.verified(read)
    assert Commit.of({"id": "unversioned", "dirty": 1}) == Commit(None, dirty=True)
    assert Commit.of({"id": 7}) == Commit("7")


def test_a_run_says_which_cases_it_has_twice_and_which_failed():
    failed = [
        {"case": "b", "outcome": "failed", "reason": "wrong\nat 3"},
        {"case": "b", "outcome": "skipped", "reason": ""},
    ]
    made = run(row("a"), row("a"), row("c"), unmeasured=[*failed, {"case": "d", "outcome": "xfailed", "reason": "bug"}])
    assert (made.twice, made.failed, made.name) == (frozenset({"a"}), ["b"], "made")
    assert made.ended(["x", "b", "d"]).headline == "wrong"
    assert (made.ended(["d"]).outcome, made.ended(["x"])) == ("xfailed", None)
    assert made.unmeasured[0].written() == {"case": "b", "outcome": "failed", "reason": "wrong\nat 3"}


def test_a_block_is_written_with_what_it_has_and_the_schema_of_this_version():
    added = {"of_mine": {"tests": [[0, "a"]]}, "nothing": None}
    left = Unmeasured(identity=typed().identity, outcome="failed", reason="x")
    written = Block(schema=1, unmeasured=(left,), parts=added).written()
    assert (written["schema"], written["unmeasured"]) == (run_file.SCHEMA, [left.written()])
    assert "nothing" not in written
    read = run_file.parse({"benchmarks": [], "flashinfer_perf": written}, "f")
    assert (read.part("of_mine", dict), read.part("nothing", dict)) == (added["of_mine"], None)
    with pytest.raises(RunError, match="f: flashinfer_perf: of_mine lacks case"):
        read.part("of_mine", Identity)
