"""What the terminal's tables share."""

WIDTH = 80


def duration(seconds: float) -> str:
    """Four digits with the unit that suits: 1.412 us, 33.40 us, 3.214 ms."""
    scale, unit = next((s, u) for s, u in ((1e6, "us"), (1e3, "ms"), (1.0, "s")) if seconds * s < 1000 or u == "s")
    return f"{seconds * scale:#.4g} {unit}"
