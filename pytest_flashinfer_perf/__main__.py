"""The command `flashinfer-perf`, which is also `python -m pytest_flashinfer_perf`."""

import sys


def main() -> int:
    """Imports are a part of it: they take so long that Ctrl-C often comes in one of them."""
    try:
        from pytest_flashinfer_perf import cli

        return cli.main()
    except KeyboardInterrupt:
        sys.stderr.write("flashinfer-perf: interrupted\n")
        return 130


if __name__ == "__main__":
    sys.exit(main())
