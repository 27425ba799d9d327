"""The documents as a site, by `make docs`: the pages as they stand in the repository, whose links Sphinx checks.

`toc.yml` beside this file is the navigation. A page that it leaves out, a link to nothing and an unknown section are
warnings, which end the build.
"""  # noqa: INP001

from pathlib import Path

project = html_title = "pytest-flashinfer-perf"
extensions = ["myst_parser", "sphinx_external_toc"]
include_patterns = ["*.md", "docs/**.md", "evidence/**.md"]
exclude_patterns = [".*", "results"]
external_toc_path = str(Path(__file__).with_name("toc.yml"))
root_doc = "docs/README"
myst_heading_anchors = 6
html_theme = "furo"
html_copy_source = False
