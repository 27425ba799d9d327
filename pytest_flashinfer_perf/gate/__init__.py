"""The gate: verdicts over pytest-benchmark's JSON. Pure Python: no GPU, no torch, no pytest."""
