"""Drop execnet's gateways of a host that is lost.

When a session ends, execnet asks each gateway to end, which fails for these, and so for all others. It has no way to
leave one out: its list of gateways is not documented, and this module is all that knows it.
"""

from __future__ import annotations

from typing import Any


def forget(gateways: Any, host: str) -> None:
    known = gateways._gateways  # noqa: SLF001
    known[:] = [gateway for gateway in known if host not in (gateway.id, gateway.spec.via)]
