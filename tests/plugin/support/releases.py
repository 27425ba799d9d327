"""Releases of a FlashInfer that only says how long its kernel takes, and a Python in which pytest reports that."""

import shlex
import sys
import zipfile

from stand_in_pytest import REPORTS

# In the place of pip, for tests of what comes after it, since pip takes longest: a wheel's files in the named folder.
PIP = """
import sys, zipfile
if "install" in sys.argv:
    zipfile.ZipFile(sys.argv[-1]).extractall(sys.argv[sys.argv.index("--target") + 1])
"""


def wheel(folder, version, us, *requires, first=""):
    """Of a FlashInfer that says how long its kernel takes; not a wheel at all where that is not known."""
    if us is not None:
        code = {"flashinfer/__init__.py": f"{first}\n__version__ = {version!r}\nUS = {us}\n"}
        return packed(folder, "flashinfer-python", version, requires, code)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"flashinfer_python-{version}-py3-none-any.whl"
    path.write_text("lost on the way")
    return path


def packed(folder, project, version, requires, code):
    """A wheel with these files."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{project.replace('-', '_')}-{version}-py3-none-any.whl"
    info = f"{project.replace('-', '_')}-{version}.dist-info"
    needed = "".join(f"Requires-Dist: {one}\n" for one in requires)
    files = {
        **code,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {project}\nVersion: {version}\n{needed}",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{name},,\n" for name in (*files, f"{info}/RECORD"))
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return path


def environment(folder, monkeypatch, *, by_pip=False):
    """Go to this folder; returns a virtual environment there, of whose Python pytest and pip are the programs above."""
    for name in ("PIP_FIND_LINKS", "PIP_CONSTRAINT", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    monkeypatch.chdir(folder)
    stand_ins = {"pytest": REPORTS} if by_pip else {"pytest": REPORTS, "pip": PIP}
    python = folder / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    real = shlex.quote(sys.executable)
    fakes = ""
    for module, program in stand_ins.items():
        (folder / f"fake_{module}.py").write_text(program)
        started = f'shift 2; exec {real} -S {folder / f"fake_{module}.py"} "$@"'
        fakes += f'if [ "$2" = {module} ]; then {started}; fi\n'
    python.write_text(f'#!/bin/sh\n{fakes}exec {real} "$@"\n')
    python.chmod(0o755)
    return python.parents[1]
