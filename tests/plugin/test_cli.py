import subprocess
import sys
import zipfile

import pytest

from pytest_flashinfer_perf import cli, suite

SELECT = ("--perf-suite=smoke", "--collect-only", "-q", "-k", "torch")


def test_the_wheel_carries_the_suite_and_runs_it_without_a_checkout(tmp_path, pytestconfig):
    """The same ids as a checkout, from an unpacked wheel, in a folder of somebody else."""
    pytest.importorskip("hatchling")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=pytestconfig.rootpath, check=True, capture_output=True)
    unpacked, elsewhere = tmp_path / "site", tmp_path / "elsewhere"
    elsewhere.mkdir()
    zipfile.ZipFile(next(tmp_path.glob("*.whl"))).extractall(unpacked)
    program = f"import sys; sys.path.insert(0, {str(unpacked)!r}); from pytest_flashinfer_perf import cli, suite; "
    program += f"print(suite.root()); sys.exit(cli.main(['bench', *{SELECT!r}]))"
    done = subprocess.run([sys.executable, "-c", program], cwd=elsewhere, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    root, *lines = done.stdout.splitlines()
    assert root == str(unpacked / "pytest_flashinfer_perf" / "suite")
    here = [sys.executable, "-m", "pytest", *SELECT]
    checkout = subprocess.run(here, cwd=pytestconfig.rootpath, capture_output=True, text=True, check=True).stdout
    ids = [line for line in lines if "::" in line]
    assert len(ids) > 40
    assert ids == [line for line in checkout.splitlines() if "::" in line]


def test_bench_in_a_checkout_uses_its_tests():
    assert [path.name for path in suite.paths()] == ["attention", "gemm", "moe"]
    assert suite.root() / "tests" / "attention" in suite.paths()


@pytest.mark.parametrize("arguments", [["--help"], ["bench", "--help"]])
def test_help_has_an_example_or_the_commands(arguments, capsys):
    with pytest.raises(SystemExit) as done:
        cli.main(arguments)
    assert done.value.code == 0
    assert "bench" in capsys.readouterr().out


def test_an_unknown_command_is_an_error(capsys):
    with pytest.raises(SystemExit) as done:
        cli.main(["fly"])
    assert done.value.code == 2
    assert "invalid choice: 'fly'" in capsys.readouterr().err
