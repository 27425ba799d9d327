"""`flashinfer-perf bisect --releases`: wheels from a folder or an index, installed before what is there already."""

import sys
from pathlib import Path

import pytest
from releases import environment, packed, wheel

from pytest_flashinfer_perf import cli
from pytest_flashinfer_perf.extensions.bisect import places
from pytest_flashinfer_perf.extensions.bisect.places import Installed
from pytest_flashinfer_perf.extensions.compare import sides

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


LEVELS = {"1.0": 100, "1.1": 100, "1.3rc1": 500, "1.3.post1": 120}


@BY_PIP
@pytest.mark.more
def test_releases_of_an_index_are_listed_and_installed_by_pip(bisect, tmp_path, monkeypatch):
    page = tmp_path / "simple" / "flashinfer-python"
    names = [wheel(page, version, us).name for version, us in LEVELS.items()]
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


def test_what_is_installed_stays_and_the_release_comes_before_it(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/already/there")
    made = wheel(tmp_path / "wheels", "1.0", 1)
    command = (sys.executable, "-c", "import flashinfer, pytest; print(flashinfer.US, pytest.__name__)")
    install = places.installer(command[:1])
    where = Installed(tmp_path, command, install, {"1.0": made}).prepared("head", "1.0")
    assert where.command[:2] == ("env", f"PYTHONPATH={tmp_path / 'releases' / '1.0'}:/already/there")
    sides.logged(where.command, tmp_path / "log")
    assert (tmp_path / "log").read_text() == "1 pytest\n"


@pytest.mark.more
def test_what_a_release_requires_is_installed_with_it(tmp_path, monkeypatch):
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
    sides.logged(where.program(program), tmp_path / "log")
    assert (tmp_path / "log").read_text() == "1 2 3\n"
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


def test_a_release_that_cannot_be_installed_or_imported_is_skipped_and_as_an_end_an_error(bisect, tmp_path):
    broken = "print('of another build')\nimport xml._gone"
    for version, us in (("0.9", 50), ("1.0", 100), ("1.1", None), ("1.2", 120), ("1.3", 120), ("1.4", 120)):
        wheel(tmp_path / "wheels", version, us, first=broken if version in {"1.2", "1.4"} else "")
    (tmp_path / "wheels" / "torch-2.11.0-py3-none-any.whl").write_text("of another project")
    code, shown, told = bisect("1.0", "1.3", "--wheels=wheels", "--output=out")
    assert code == 1
    assert "ended with code 1, all of it in" in told
    assert {path.stem for path in Path("out/builds").glob("*.log")} == {"1.0", "1.1", "1.2", "1.3"}
    assert not Path("out/releases").exists()
    reason = "does not import here: ModuleNotFoundError: No module named 'xml._gone'"
    assert f"unclear: 1.2 {reason}" in " ".join(told.split())
    assert "first slower in one of these 3, of which only the last could be measured: 1.1 1.2 1.3" in shown
    code, _, told = bisect("1.0", "1.4", "--wheels=wheels", "--output=none")
    assert (code, told.splitlines()[-1]) == (2, f"flashinfer-perf bisect: 1.4 {reason}")
    wheel(tmp_path / "wheels", "1.0", 100, first="import os; os.abort()")
    code, _, told = bisect("1.0", "1.3", "--wheels=wheels", "--output=aborted")
    assert "1.0 does not import here: 1.0: its Python does not answer: " in told
