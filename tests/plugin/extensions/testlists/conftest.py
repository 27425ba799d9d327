import pytest


@pytest.fixture
def run(session, pytester):
    """A session on a file of lines, named or asked for."""

    def run(text, *arguments, name="lines.txt"):
        (pytester.path / name).write_text(text)
        return session("--import-mode=importlib", *arguments)

    return run
