"""Write the page as one self-contained file, with its data and JavaScript libraries."""

from __future__ import annotations

import base64
import functools
import hashlib
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from pytest_flashinfer_perf.files import write_whole
from pytest_flashinfer_perf.report import story
from pytest_flashinfer_perf.report.html.view import View
from pytest_flashinfer_perf.rows import formatting
from pytest_flashinfer_perf.rows.run_file import Run

INSTALL = "pip install 'pytest-flashinfer-perf[report]'"


def missing() -> str | None:
    """What a page is made with is an extra of its own."""
    try:
        import jinja2  # noqa: F401
        import vl_convert  # noqa: F401
    except ImportError as error:
        return f"an HTML report needs {error.name}: {INSTALL}"
    return None


def write(path: Path, runs: Sequence[Run]) -> None:
    write_whole(path, render(runs))


def render(runs: Sequence[Run]) -> str:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader(__package__, "."),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    shown_by = (formatting.duration, formatting.spread, formatting.rate, formatting.named)
    environment.filters |= {function.__name__: function for function in shown_by}
    script = _libraries() + _asset("report.js")
    view = View(tuple(runs), story.of(runs))
    return environment.get_template("page.html.j2").render(
        view=view, script=script, script_hash=_hash(script), style=_asset("report.css")
    )


@functools.cache
def _libraries() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script; the tag that holds it must not end early."""
    import vl_convert

    return str(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")).replace("</script", "<\\/script") + "\n"


def _asset(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def _hash(script: str) -> str:
    """The only script that the page's own policy lets run."""
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
