"""Subcommands of `flashinfer-perf` beside those that run pytest: a module each, with a `main`."""
