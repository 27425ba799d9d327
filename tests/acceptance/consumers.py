"""Tools that read what this project writes, each installed into an environment of its own and run on a real file.

python tests/acceptance/consumers.py [RUN.json]
python tests/acceptance/consumers.py --dry-run [RUN.json]     # writes the files, and installs nothing
"""

import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).parents[2]
TOOLS = ("prometheus-client", "pandas", "pytest-codspeed", "zizmor")
PARSES = """
import sys
from prometheus_client.parser import text_string_to_metric_families
families = list(text_string_to_metric_families(open(sys.argv[1]).read()))
assert families and all(family.samples for family in families)
print({family.name: len(family.samples) for family in families})
"""
READS = """
import sys
import pandas
table = pandas.read_csv(sys.argv[1])
assert table["median_us"].dtype.kind == "f" and len(table)
print(len(table), "lines,", int(table["median_us"].notna().sum()), "with a time")
"""
OWN = "import torch\ndef test_neg(perf): perf.time(torch.neg, torch.ones(8))\n"


def exported(run: Path, to: str, folder: Path) -> Path:
    """As the command writes it."""
    output = folder / f"run.{to}"
    command = "import sys; from pytest_flashinfer_perf.cli import main; sys.exit(main(sys.argv[1:]))"
    subprocess.run([sys.executable, "-c", command, "export", run, "--to", to, "-o", output], check=True)
    return output


def codspeed(python: Path, folder: Path) -> None:
    """Beside this environment's own packages, as if it were installed here."""
    where = "import sysconfig; print(sysconfig.get_path('purelib'))"
    packages = subprocess.run([python, "-c", where], check=True, capture_output=True, text=True).stdout.strip()
    (folder / "test_own.py").write_text(OWN)
    start = f"import sys; sys.path.append({packages!r}); import pytest; sys.exit(pytest.main(sys.argv[1:]))"
    words = [
        sys.executable,
        "-c",
        start,
        "test_own.py",
        "--codspeed",
        "--perf-device=cpu",
    ]
    done = subprocess.run(words, cwd=folder, check=False, capture_output=True, text=True)
    assert done.returncode == 4, done.stdout + done.stderr
    print(next(line for line in (done.stdout + done.stderr).splitlines() if "pytest-codspeed is active" in line))


def main() -> None:
    dry = sys.argv[1:2] == ["--dry-run"]
    given = sys.argv[1 + dry :]
    run = Path(given[0] if given else ROOT / "evidence" / "h200-run.json").resolve()
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        files = {to: exported(run, to, folder) for to in ("prometheus", "csv")}
        if dry:
            print("\n".join(f"{path.name}: {len(path.read_text().splitlines())} lines" for path in files.values()))
            return
        venv.create(folder / "venv", with_pip=True)
        python = folder / "venv" / "bin" / "python"
        subprocess.run([python, "-m", "pip", "install", "--quiet", *TOOLS], check=True)
        subprocess.run([python, "-c", PARSES, files["prometheus"]], check=True)
        subprocess.run([python, "-c", READS, files["csv"]], check=True)
        codspeed(python, folder)
        workflows = ("action.yml", "comment/action.yml", ".github/workflows", "examples/github-actions")
        subprocess.run([python.with_name("zizmor"), "--offline", *workflows], cwd=ROOT, check=True)


if __name__ == "__main__":
    main()
