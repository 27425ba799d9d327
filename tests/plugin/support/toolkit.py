"""A CUDA toolkit whose compilers compile nothing, and write down what they were asked for and when."""

import os

COMPILER = """#!/bin/sh
case "$*" in *--version*) echo "Cuda compilation tools, release 13.0, V13.0.88"; exit 0;; esac
started=$(date +%s.%N)
previous=; for word in "$@"; do
    case "$previous" in -o) out=$word;; -c) source=$word;; -MF) depends=$word;; esac
    previous=$word
done
[ -n "$out" ] || exit 0
sleep ${TAKES:-0}
[ -z "$depends" ] || echo "$out: $source" > "$depends"
echo "$out $started $(date +%s.%N)" >> "$COMPILED"
case "$out" in
    *${BROKEN:-nothing}*) echo "${source:-ld}(7): warning"; echo "${source:-ld}(12): error: no such kernel"; exit 2;;
esac
echo compiled > "$out"
"""


class Toolkit:
    def __init__(self, folder):
        self._seen = folder / "compiled.txt"
        self.cache = folder / "workspace"
        compiler = folder / "cuda" / "bin" / "nvcc"
        compiler.parent.mkdir(parents=True)
        compiler.write_text(COMPILER)
        compiler.chmod(0o755)
        self.environment = {
            **os.environ,
            "PYTEST_ADDOPTS": "-p no:hypothesispytest",  # whose end of a session imports all of it
            "CUDA_HOME": str(folder / "cuda"),
            "CXX": str(compiler),
            "COMPILED": str(self._seen),
            "FLASHINFER_WORKSPACE_BASE": str(self.cache),
            "FLASHINFER_CUDA_ARCH_LIST": "9.0a",
        }

    @property
    def compiled(self):
        """What was written, from when to when."""
        lines = self._seen.read_text().splitlines() if self._seen.exists() else []
        return [(out, float(start), float(end)) for out, start, end in map(str.split, lines)]

    @property
    def modules(self):
        return {path.stem for path in self.cache.rglob("cached_ops/*/*.so")}

    @property
    def at_once(self):
        """The most compilers that were at work at any time."""
        starts = [start for _, start, _ in self.compiled]
        return max(sum(s <= at < e for _, s, e in self.compiled) for at in starts)
