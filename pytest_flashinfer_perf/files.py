"""Files appear whole or not at all."""

from __future__ import annotations

import tempfile
from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False, newline="", encoding="utf-8") as made:
        made.write(text)
    Path(made.name).replace(path)
