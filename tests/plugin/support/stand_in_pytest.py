"""Programs that stand for pytest, which takes seconds to start."""

import sys

from pytest_flashinfer_perf.session.processes import Environment

# It writes down its words, and gives the rows that a test has put beside it.
PROGRAM = """
import json, os, shutil, sys
from pathlib import Path

words = sys.argv[1:]
Path("words.json").write_text(json.dumps([words, os.environ.get("MINE"), os.getcwd()]))
[output] = [word.partition("=")[2] for word in words if word.startswith("--benchmark-json=")]
if Path("rows.json").exists():
    shutil.copy("rows.json", output)
print("first\\nlast")
sys.exit(int(Path("code").read_text()))
"""
# It writes rows of the cases in the file `level`, or of one that takes as long as the installed FlashInfer says, in
# microseconds. `clock` is measured here, by the clock of this thread, which other programs do not move.
REPORTS = """
import json, os, sys, time
words = dict(word.partition("=")[::2] for word in sys.argv[1:])
machine = {}
if os.path.exists("level"):
    level = json.load(open("level"))
else:
    import flashinfer
    level, machine = {"a": flashinfer.US}, {"flashinfer": flashinfer.__version__}
if "broken" in level:
    print("level.c:1: error: it does not compile")
    sys.exit(2)
only = open(words["--perf-only"]).read().split() if "--perf-only" in words else list(level)
plants = json.load(open(words["--perf-plant"])) if "--perf-plant" in words else {}
def measured(seconds):
    start = time.thread_time()
    while time.thread_time() - start < seconds:
        pass
    return time.thread_time() - start
rows = []
for name in only:
    us, planted = level[name], plants.get(name, 0.0)
    jitter = 1 + 1e-6 * (os.getpid() % 7)
    median = measured(us * 1e-6) if name == "clock" else us * jitter * 1e-6 + planted
    stats = {"median": median, "mean": median, "stddev": 1e-3 * median, "iqr": 1e-3 * median, "rounds": 9}
    extra = {"case": f"own/{name}", "instrument": "wall" if name == "clock" else "cupti"}
    extra |= {"status": "ok", "bound": "memory", "planted_us": planted * 1e6 or None}
    extra |= {"case_s": time.time(), "kernels": [f"kernel_{us:.0f}"], "resolved_backend": "torch"}
    if "--perf-case" in words:
        extra["refcheck"] = "passed" if us < 100 else "wrong"
    if name == "enqueued":
        stats |= {"median": 1e-4, "mean": 1e-4}
        extra["host"] = {"host_us": us, "rounds_us": [us * jitter] * 5, "references_us": [20.0] * 5, "waits": False}
    rows.append({"name": name, "fullname": name, "stats": stats, "extra_info": extra})
json.dump({"benchmarks": rows, "machine_info": machine}, open(words["--benchmark-json"], "w"))
sys.exit(int(words.get("CODE", 0)))
"""


def environment(folder, **variables):
    """The program in this folder; it ends with the number in the file `code`."""
    (folder / "pytest.py").write_text(PROGRAM)
    (folder / "code").write_text("0")
    return Environment("base", (sys.executable, "pytest.py"), folder, variables)
