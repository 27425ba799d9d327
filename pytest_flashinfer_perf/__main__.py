"""`python -m pytest_flashinfer_perf`, which is the command `flashinfer-perf`."""

import sys

from pytest_flashinfer_perf.cli import main

if __name__ == "__main__":
    sys.exit(main())
