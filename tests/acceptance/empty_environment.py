"""A wheel in an environment that has nothing else: python tests/acceptance/empty_environment.py [--here | ARTIFACT]

Installs a release's wheel or sdist, or the wheel that it builds, and does what a newcomer would beside a test of their
own; each step with its seconds. With --here it does that in the environment in which it runs.
"""

import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
KERNEL = """
import torch


def test_my_matmul(perf):
    a = torch.randn(512, 512)
    out = torch.empty_like(a)
    perf.time(torch.mm, a, a, out=out, flops=2 * 512**3, bytes=3 * a.nbytes, reference=lambda: a @ a)
"""
CPU = ("--perf-device=cpu", "--perf-iters=10")


# A CPU with neighbours may well be slower the second time, or too busy to be judged; what counts is that it says so.
VERDICT = (0, 1, 2)


def step(title: str, command: Sequence[object], folder: Path, accepted: Sequence[int] = (0,)) -> str:
    started = time.perf_counter()
    done = subprocess.run([str(word) for word in command], cwd=folder, capture_output=True, text=True, check=False)
    print(f"{time.perf_counter() - started:6.1f} s  {title}", flush=True)
    if done.returncode not in accepted:
        sys.exit(f"{title}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        own = work / "mine"
        own.mkdir()
        (own / "test_my_kernel.py").write_text(KERNEL)
        if sys.argv[1:] == ["--here"]:
            use(Path(sys.executable).parent, own)
            return
        artifact = Path(sys.argv[1]).resolve() if sys.argv[1:] else built_wheel(work)
        step("make an empty environment", [sys.executable, "-m", "venv", work / "env"], work)
        tool = work / "env" / "bin"
        pip = [tool / "python", "-m", "pip", "--quiet", "--disable-pip-version-check", "install"]
        step("install it", [*pip, "-c", ROOT / "constraints-cpu.txt", f"{artifact}[bench,report]"], work)
        use(tool, own)


def built_wheel(work: Path) -> Path:
    step("build the wheel", [sys.executable, "-m", "pip", "wheel", "--no-deps", "-w", work, ROOT], work)
    return next(work.glob("*.whl"))


def use(tool: Path, own: Path) -> None:
    command = [tool / "pytest", "--benchmark-quiet", "--benchmark-json=run.json", "--perf-html=run.html", *CPU]
    table = step("time a kernel of one's own", command, own)
    print(table[table.index("= flashinfer-perf =") :])
    [row] = json.loads((own / "run.json").read_text())["benchmarks"]
    assert row["extra_info"]["refcheck"] == "passed", row
    assert len(row["stats"]["data"]) == 10, row
    gate = [tool / "pytest", "--benchmark-quiet", "--perf-gate=run.json", *CPU]
    judged = step("judge it again, against that run", gate, own, accepted=VERDICT)
    print(judged[judged.index("test_my_kernel.py::test_my_matmul") :])
    step("make a page of it", [tool / "flashinfer-perf", "report", "run.json"], own)
    print(step("make Markdown of it", [tool / "flashinfer-perf", "report", "--markdown", "run.json"], own))
    bench = [tool / "flashinfer-perf", "bench", "-k", "decode", "--perf-suite=smoke", *CPU]
    print(step("run the shipped suite, without a checkout", bench, own).splitlines()[-1])
    step("ask what can be asked for", [tool / "flashinfer-perf", "list"], own)
    print(
        step("ask what can be measured here", [tool / "flashinfer-perf", "doctor"], own, accepted=(exit_of_doctor(),))
    )


def exit_of_doctor() -> int:
    """1 where there is no GPU to measure on."""
    return 0 if shutil.which("nvidia-smi") else 1


if __name__ == "__main__":
    main()
