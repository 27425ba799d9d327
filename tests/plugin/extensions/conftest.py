import pytest


@pytest.fixture
def command(capsys):
    """Runs `flashinfer-perf` with these words: its exit code, and what it says."""
    from pytest_flashinfer_perf import cli

    def command(*words):
        code = cli.main([str(word) for word in words])
        said = capsys.readouterr()
        return code, said.out + said.err

    return command
