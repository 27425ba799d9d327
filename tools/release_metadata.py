"""What a release says of its repository: the project's URLs, and links of the README that lead there from PyPI.

A build hook of hatchling. The repository is the one whose workflow builds, by the variables that GitHub sets in every
job: a build elsewhere has no URLs and leaves the links as they are.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

LINK = re.compile(r"\]\((?!\w+:|#)([^)]+)\)")


class ReleaseMetadata(MetadataHookInterface):
    def update(self, metadata: dict[str, Any]) -> None:
        text, repository = (Path(self.root) / "README.md").read_text(encoding="utf-8"), repository_of(os.environ)
        pages = f"{repository}/blob/v{metadata['version']}"
        linked = LINK.sub(rf"]({pages}/\1)", text) if repository else text
        metadata["readme"] = {"content-type": "text/markdown", "text": linked}
        metadata["urls"] = _urls(repository, pages) if repository else {}


def repository_of(variables: Mapping[str, str]) -> str | None:
    server, name = (variables.get(f"GITHUB_{part}") for part in ("SERVER_URL", "REPOSITORY"))
    return f"{server}/{name}" if server and name else None


def _urls(repository: str, pages: str) -> dict[str, str]:
    return {
        "Source": repository,
        "Documentation": f"{pages}/docs/README.md",
        "Changelog": f"{pages}/CHANGELOG.md",
        "Issues": f"{repository}/issues",
    }
