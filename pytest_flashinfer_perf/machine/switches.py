"""Variables of the environment that choose FlashInfer's kernels: those that begin as its own and its parts' do.

Rows are published. So of a value no more is written than a number, an architecture or a word that turns something on or
off, and of any other that it is set: no path, address or token looks like these.
"""

from __future__ import annotations

import os
import re

NAMES = re.compile(r"(FLASHINFER(?!_PERF)|ALPHAMOE|B12X|CAKE|CUTE_DSL|GDN|PRIMS_FMHA|SGLANG_GDN|TLLM|TRTLLM|XQA)_\w+")
OF_FILES = re.compile(r"_(WORKSPACE_BASE|(\w+_)?CACHE\w*|\w*FLAGS|\w*DIR|DUMP\w*|JIT_\w+|LOG\w*|\w*REPOSITORY)$")
PLAIN = re.compile(r"-?[\d.]{0,6}|\d+\.\d+[af]?( \d+\.\d+[af]?)*|auto|false|no|none|off|on|true|yes", re.IGNORECASE)
SET = "set"


def switches() -> dict[str, str]:
    """Those that are set, with their values as far as these are written."""
    names = [name for name in sorted(os.environ) if NAMES.fullmatch(name) and not OF_FILES.search(name)]
    return {name: os.environ[name] if PLAIN.fullmatch(os.environ[name]) else SET for name in names}
