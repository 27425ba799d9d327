"""A CUDA toolkit whose compilers compile nothing, and write down what they were asked for and how many are at work.

With MEETS the first one waits until another one has begun.
"""

import os
from pathlib import Path

COMPILER = """#!/bin/bash
case "$*" in *--version*) echo "Cuda compilation tools, release 13.0, V13.0.88"; exit 0;; esac
previous=; for word in "$@"; do
    case "$previous" in -o) out=$word;; -c) source=$word;; -MF) depends=$word;; esac
    previous=$word
done
[ -n "$out" ] || exit 0
mkdir "$TOOLKIT/work/$$"
at_work=("$TOOLKIT"/work/*)
echo "$out ${#at_work[@]}" >> "$TOOLKIT/compiled.txt"
if [ -n "$MEETS" ]; then
    exec 3<> "$TOOLKIT/meeting"
    if mkdir "$TOOLKIT/first" 2> /dev/null; then read -r -t 60 -u 3; else echo here >&3; fi
fi
rmdir "$TOOLKIT/work/$$"
[ -z "$depends" ] || echo "$out: $source" > "$depends"
case "$out" in
    *${BROKEN:-nothing}*) echo "${source:-ld}(7): warning"; echo "${source:-ld}(12): error: no such kernel"; exit 2;;
esac
echo compiled > "$out"
"""
NO_CUTE_DSL = str(Path(__file__).parent / "no_cute_dsl")


class Toolkit:
    def __init__(self, folder):
        self._folder = folder
        self.cache = folder / "workspace"
        compiler = folder / "cuda" / "bin" / "nvcc"
        compiler.parent.mkdir(parents=True)
        compiler.write_text(COMPILER)
        compiler.chmod(0o755)
        folder.joinpath("work").mkdir()
        os.mkfifo(folder / "meeting")
        self.environment = {
            "PYTHONPATH": os.pathsep.join((NO_CUTE_DSL, os.environ.get("PYTHONPATH", ""))),
            "CUDA_HOME": str(folder / "cuda"),
            "CXX": str(compiler),
            "TOOLKIT": str(folder),
            "FLASHINFER_WORKSPACE_BASE": str(self.cache),
            "FLASHINFER_CUDA_ARCH_LIST": "9.0a",
        }

    def _seen(self):
        path = self._folder / "compiled.txt"
        return [line.split() for line in path.read_text().splitlines()] if path.exists() else []

    @property
    def compiled(self):
        """What was to be written, in the order in which it was asked for."""
        return [out for out, _ in self._seen()]

    @property
    def modules(self):
        return {path.stem for path in self.cache.rglob("cached_ops/*/*.so")}

    @property
    def at_once(self):
        """The most compilers that were at work at any time."""
        return max(int(number) for _, number in self._seen())
