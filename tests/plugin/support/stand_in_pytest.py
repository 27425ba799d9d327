"""A program that stands for pytest: it writes down its words, and gives the rows that a test has put beside it."""

import sys

from pytest_flashinfer_perf.session.processes import Environment

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


def environment(folder, **variables):
    """The program in this folder; it ends with the number in the file `code`."""
    (folder / "pytest.py").write_text(PROGRAM)
    (folder / "code").write_text("0")
    return Environment("base", (sys.executable, "pytest.py"), folder, variables)
