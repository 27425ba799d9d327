"""Tools that read what this project writes, each installed into an environment of its own and run on a real file.

python tests/acceptance/consumers.py [RUN.json]
python tests/acceptance/consumers.py --dry-run [RUN.json]     # writes the files, and installs nothing
"""

import contextlib
import html
import json
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
TOOLS = ("prometheus-client", "pandas", "pytest-codspeed", "pytest-html", "allure-pytest", "zizmor")
OF_DEBIAN = ("prometheus", "prometheus-node-exporter")
PORT = 19100
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


def session(python: Path, folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Of pytest, with the tools beside this environment's own packages, as if they were installed here."""
    where = "import sysconfig; print(sysconfig.get_path('purelib'))"
    packages = subprocess.run([python, "-c", where], check=True, capture_output=True, text=True).stdout.strip()
    (folder / "test_own.py").write_text(OWN)
    start = f"import sys; sys.path.append({packages!r}); import pytest; sys.exit(pytest.main(sys.argv[1:]))"
    words = [sys.executable, "-c", start, "test_own.py", "--perf-device=cpu", *options]
    return subprocess.run(words, cwd=folder, check=False, capture_output=True, text=True)


def codspeed(python: Path, folder: Path) -> None:
    done = session(python, folder, "--codspeed")
    assert done.returncode == 0, done.stdout + done.stderr
    print(next(line.strip() for line in done.stdout.splitlines() if "pytest-codspeed is active" in line))


def reporters(python: Path, folder: Path) -> None:
    """Columns of pytest-html, parameters of allure."""
    done = session(python, folder, "--html=report.html", "--alluredir=allure", "-p", "no:pytest_codspeed")
    assert done.returncode == 0, done.stdout + done.stderr
    page = html.unescape((folder / "report.html").read_text())
    figure = re.search(r'class=\\"col-perf_median_us\\">([\d.]+)<', page)
    assert figure, "pytest-html has no median"
    [result] = (json.loads(path.read_text()) for path in (folder / "allure").glob("*-result.json"))
    known = {one["name"]: one["value"] for one in result["parameters"]}
    assert float(known["perf_median_us"]) > 0
    print(f"pytest-html: {figure[1]} us, allure: {', '.join(known)}")


def prometheus(text: Path, folder: Path) -> None:
    """Debian's promtool and node_exporter, unpacked and not installed."""
    if shutil.which("apt-get") is None:
        print("promtool and node_exporter were not tried: no apt-get here")
        return
    subprocess.run(["apt-get", "download", "-q", *OF_DEBIAN], cwd=folder, check=True, capture_output=True)
    for package in folder.glob("*.deb"):
        subprocess.run(["dpkg", "-x", package, folder / "debian"], check=True)
    programs, read = folder / "debian" / "usr" / "bin", folder / "textfile"
    check = [str(programs / "promtool"), "check", "metrics"]
    said = subprocess.run(check, check=False, input=text.read_text(), capture_output=True, text=True)
    assert (said.returncode, said.stdout + said.stderr) == (0, ""), said
    read.mkdir()
    shutil.copy(text, read / "flashinfer_perf.prom")
    words = [f"--web.listen-address=127.0.0.1:{PORT}", f"--collector.textfile.directory={read}"]
    words += ["--collector.disable-defaults", "--collector.textfile"]
    exporter = subprocess.Popen([programs / "prometheus-node-exporter", *words], stderr=subprocess.DEVNULL)
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
    lines = [line for line in text.read_text().splitlines() if line.startswith("flashinfer_perf_median_seconds{")]
    assert lines
    assert served.count("\nflashinfer_perf_median_seconds{") == len(lines)
    print(f"promtool: no remark, node_exporter: {len(lines)} medians")


def main() -> None:
    dry = sys.argv[1:2] == ["--dry-run"]
    given = sys.argv[1 + dry :]
    run = Path(given[0] if given else ROOT / "evidence" / "h200-run.json").resolve()
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        files = {to: exported(run, to, folder) for to in ("prometheus", "csv", "pytorch")}
        if dry:
            print("\n".join(f"{path.name}: {len(path.read_text().splitlines())} lines" for path in files.values()))
            return
        venv.create(folder / "venv", with_pip=True)
        python = folder / "venv" / "bin" / "python"
        subprocess.run([python, "-m", "pip", "install", "--quiet", *TOOLS], check=True)
        subprocess.run([python, "-c", PARSES, files["prometheus"]], check=True)
        subprocess.run([python, "-c", READS, files["csv"]], check=True)
        prometheus(files["prometheus"], folder)
        codspeed(python, folder)
        reporters(python, folder)
        workflows = ("action.yml", "comment/action.yml", ".github/workflows", "examples/github-actions")
        subprocess.run([python.with_name("zizmor"), "--offline", *workflows], cwd=ROOT, check=True)


if __name__ == "__main__":
    main()
