"""`flashinfer-perf bisect --releases`: wheels from a folder or an index, installed before what is there already."""

import sys
from pathlib import Path

import pytest
from releases import environment, packed, wheel

from pytest_flashinfer_perf import cli
from pytest_flashinfer_perf.extensions.bisect import places, subjects
from pytest_flashinfer_perf.extensions.bisect.places import Installed, Processes
from pytest_flashinfer_perf.extensions.bisect.search import Question
from pytest_flashinfer_perf.launch import processes

# By the real pip.
BY_PIP = pytest.mark.parametrize("bisect", [True], indirect=True, ids=["pip"])


@pytest.fixture
def bisect(tmp_path, monkeypatch, capsys, request):
    """Exit code, standard output in one line, and standard error; of its Python, pytest and pip are stand-ins."""
    python = environment(tmp_path, monkeypatch, by_pip=getattr(request, "param", False))

    def bisect(*own):
        words = ["bisect", "--releases", *own, f"--python={python}", "--", "--perf-device=cpu"]
        code = cli.main(words)
        shown = capsys.readouterr()
        return code, " ".join(shown.out.split()), shown.err

    return bisect


LEVELS = {"0.9": 50, "1.0": 100, "1.1": 100, "1.2": None, "1.3rc1": 500, "1.3.post1": 120, "1.10": 120, "2.0": 10}


@BY_PIP
@pytest.mark.more
def test_the_release_is_found_in_a_folder_of_wheels(bisect, tmp_path):
    for version, us in LEVELS.items():
        wheel(tmp_path / "wheels", version, us)
    (tmp_path / "wheels" / "torch-2.11.0-py3-none-any.whl").write_text("of another project")
    code, shown, told = bisect("1.0", "1.10", "--wheels=wheels", "--output=out")
    assert code == 1
    assert "own/a first slower in one of these 2, of which only the last could be measured: 1.2 1.3.post1" in shown
    assert "flashinfer 1.1 -> 1.3.post1" in shown
    assert "4 points from 1.0 to 1.10" in told
    assert "ended with code 1, all of it in" in told
    used = {path.stem for path in Path("out/builds").glob("*.log")}
    assert used == {"1.0", "1.1", "1.2", "1.3.post1", "1.10"}
    assert not Path("out/releases").exists()


@BY_PIP
@pytest.mark.more
def test_releases_of_an_index_are_listed_and_installed_by_pip(bisect, tmp_path, monkeypatch):
    page = tmp_path / "simple" / "flashinfer-python"
    names = [wheel(page, version, LEVELS[version]).name for version in ("1.0", "1.1", "1.3rc1", "1.3.post1")]
    (page / "index.html").write_text("".join(f'<a href="{name}">{name}</a>\n' for name in names))
    monkeypatch.setenv("PIP_INDEX_URL", f"file://{tmp_path / 'simple'}")
    code, shown, told = bisect("1.0", "1.3.post1", "--output=out")
    assert code == 0
    assert "own/a first slower in 1.3.post1 (release of flashinfer-python)" in shown
    assert "2 points from 1.0 to 1.3.post1" in told
    monkeypatch.setenv("PIP_INDEX_URL", f"file://{tmp_path / 'nowhere'}")
    code, _, told = bisect("1.0", "1.3.post1", "--output=other")
    assert code == 2
    assert "pip cannot list the releases of flashinfer-python: " in told


def test_a_dry_run_prints_what_it_would_cost_and_makes_nothing(bisect, tmp_path):
    for version in ("1.0", "1.1", "1.3.post1"):
        wheel(tmp_path / "wheels", version, LEVELS[version])
    before = sorted(tmp_path.rglob("*"))
    code, shown, told = bisect("1.0", "1.3.post1", "--wheels=wheels", "--dry-run")
    assert (code, told) == (0, "")
    assert "points: 2, so about 1 step after the ends, and a verification" in shown
    assert "cases: 1, in 3 to 10 pairs" in shown
    assert "disk: 0.00 GiB" in shown
    assert "minutes: 2 to 7 at 6 s a process and 1 s a case" in shown
    assert sorted(tmp_path.rglob("*")) == before


def test_disk_is_that_of_what_is_installed_where_no_wheel_is_there_to_be_looked_at(monkeypatch):
    of_one = subjects.disk_of_releases(1)
    assert of_one > 100 * 2**20
    assert subjects.disk_of_releases(3) == 3 * of_one
    monkeypatch.setattr(subjects.requirements, "PROJECT", "no-such-project")
    assert subjects.disk_of_releases(3) is None


@pytest.mark.parametrize(
    ("own", "sentence"),
    [
        (("1.3.post1", "1.0"), "the older release comes first"),
        (("1.0", "1.0"), "the older release comes first"),
        (("1.0", "x"), "'x' is no version, as in 0.7.1"),
        (("1.0", "1.2"), "flashinfer-python 1.2 is not in wheels, which has 1.0, 1.3.post1"),
    ],
)
def test_what_cannot_be_searched_is_said(bisect, tmp_path, own, sentence):
    for version in ("1.0", "1.3.post1"):
        wheel(tmp_path / "wheels", version, 1)
    code, shown, told = bisect(*own, "--wheels=wheels")
    assert (code, shown) == (2, "")
    assert sentence in told
    assert "there is no such folder" in bisect("1.0", "1.1", "--wheels=nowhere")[2]


@pytest.mark.usefixtures("bisect")
def test_on_a_gpu_the_kernels_of_the_suspects_are_compiled_once_before_they_are_timed(tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.setenv("GPU", "GPU-0")
    made = {version: wheel(tmp_path / "wheels", version, LEVELS[version]) for version in ("1.0", "1.3.post1")}
    command = (str(tmp_path / "venv" / "bin" / "python"), "-m", "pytest")
    installed = Installed(tmp_path, command, places.installer([sys.executable]), made)
    instrument = Processes(installed, ["tests", "-k", "decode"], tmp_path / "out", "GPU-0")
    question = Question(1, "step", "1.0", "1.3.post1", {"own/a": "a", "own/b": "b"})
    for nth, cases in enumerate((["own/a", "own/b"], ["own/a"])):
        assert [len(instrument(question, side, nth, cases).rows) for side in ("base", "head")] == [1, 1]
    log = (tmp_path / "out" / "01-step" / "prebuild-base.log").read_text().splitlines()
    assert log[0] == str(tmp_path / "releases" / "1.0")
    assert "cli.main(['prebuild', '--', *sys.argv[1:]])" in log[1]
    named = tmp_path / "out" / "01-step" / "pair-01-base.prebuild"
    assert log[1].endswith(f" tests -k decode --perf-only={named}")
    assert named.read_text() == "a\nb\n"
    told = capsys.readouterr().err
    assert told.count("  prebuild, base: ") == 1
    assert told.count(f"see {tmp_path / 'out' / '01-step' / 'prebuild-head.log'}") == 1


def test_what_is_installed_stays_and_the_release_comes_before_it(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/already/there")
    made = wheel(tmp_path / "wheels", "1.0", 1)
    command = (sys.executable, "-c", "import flashinfer, pytest; print(flashinfer.US, pytest.__name__)")
    install = places.installer(command[:1])
    where = Installed(tmp_path, command, install, {"1.0": made}).prepared("head", "1.0")
    assert where.command[:2] == ("env", f"PYTHONPATH={tmp_path / 'releases' / '1.0'}:/already/there")
    processes.logged(where.command, tmp_path / "log")
    assert (tmp_path / "log").read_text() == "1 pytest\n"


@pytest.mark.more
def test_what_a_release_requires_is_installed_with_it_and_the_rest_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    wheels = tmp_path / "wheels"
    requires = ("kernels[of-13]>=2", "lost>=1", "torch>=99", "pytest")
    made = wheel(wheels, "1.0", 1, *requires)
    line = "import sys, kernels; sys.path.insert(0, kernels.__path__[0] + '/inside')\n"  # as nvidia-cutlass-dsl does
    packed(wheels, "kernels", "2.1", ["kernels-13==2.1; extra == 'of-13'"], {"kernels/__init__.py": "A = 1\n"})
    packed(
        wheels,
        "kernels-13",
        "2.1",
        [],
        {"kernels/of_13.py": "B = 2\n", "kernels/inside/dsl.py": "C = 3\n", "kernels.pth": line},
    )
    packed(wheels, "kernels", "1.9", [], {"kernels/__init__.py": "A = 0\n"})
    program = "import flashinfer, kernels, kernels.of_13, dsl; print(kernels.A, kernels.of_13.B, dsl.C)"
    install = places.installer([sys.executable], wheels)
    where = Installed(tmp_path, (sys.executable, "-m", "pytest"), install, {"1.0": made}).prepared("head", "1.0")
    processes.logged(where.program(program), tmp_path / "log")
    assert (tmp_path / "log").read_text() == "1 2 3\n"
    told = capsys.readouterr().err
    assert told.startswith(
        "1.0: not installed: lost>=1 (ERROR: No matching distribution found for lost>=1); torch>=99 (is "
    )
    assert told.endswith(", >=99 is required, and torch stays what it is)\n")
    assert sorted(path.stem for path in (tmp_path / "builds").iterdir()) == [
        "1.0",
        "1.0-kernels",
        "1.0-kernels-13",
        "1.0-lost",
    ]


@pytest.mark.parametrize("find", ["slower", "wrong"])
def test_an_incomplete_release_is_not_measured_unless_that_is_admitted(bisect, tmp_path, monkeypatch, find):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    for version, requires in (("1.0", ()), ("1.1", ("lost",)), ("1.2", ("lost",)), ("1.3", ())):
        wheel(tmp_path / "wheels", version, 100 if version < "1.2" else 120, *requires)
    code, _, told = bisect("1.0", "1.2", "--wheels=wheels", "--output=ends", f"--find={find}")
    assert code == 2
    assert "1.2: FlashInfer is incomplete: lost is not installed: install it, or admit it with --perf-gate-" in told
    assert not list(Path("ends").glob("0*/*.json"))
    if find == "wrong":
        return
    code, shown, told = bisect("1.0", "1.3", "--wheels=wheels", "--output=steps")
    assert code == 1
    assert "first slower in one of these 3, of which only the last could be measured: 1.1 1.2 1.3" in shown
    code, shown, _ = bisect("1.0", "1.3", "--wheels=wheels", "--output=admitted", "--perf-gate-allow=requirements")
    assert code == 0
    assert "own/a first slower in 1.2 (release of flashinfer-python)" in shown


def test_a_release_that_does_not_import_is_skipped_and_as_an_end_gives_way(bisect, tmp_path):
    broken = "print('of another build')\nimport xml._gone"
    for version, us in (("1.0", 100), ("1.1", 100), ("1.2", 120), ("1.3", 120), ("1.4", 120)):
        wheel(tmp_path / "wheels", version, us, first=broken if version in {"1.0", "1.2", "1.4"} else "")
    code, shown, told = bisect("1.0", "1.4", "--wheels=wheels", "--output=out")
    assert code == 1
    for end in ("1.0", "1.4"):
        assert f"{end} does not import here: ModuleNotFoundError: No module named 'xml._gone': left out" in told
    assert "2 points from 1.1 to 1.3" in told
    assert "skip: 1.2 does not import here: ModuleNotFoundError: No module named 'xml._gone'" in " ".join(told.split())
    assert "first slower in one of these 2, of which only the last could be measured: 1.2 1.3" in shown
    wheel(tmp_path / "wheels", "1.0", 100, first="import os; os.abort()")
    code, _, told = bisect("1.0", "1.1", "--wheels=wheels", "--output=none")
    assert "1.0 does not import here: 1.0: its Python does not answer: " in told
    wheel(tmp_path / "wheels", "1.1", 100, first=broken)
    code, _, told = bisect("1.0", "1.1", "--wheels=wheels", "--output=neither")
    assert (code, told.splitlines()[-1]) == (
        2,
        "flashinfer-perf bisect: --releases: no two of these releases import here",
    )
