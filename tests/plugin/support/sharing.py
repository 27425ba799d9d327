"""Which of pytest-xdist's workers runs a test: the one that has made what it shares with others, or the next one."""

import functools

import pytest
from xdist.scheduler import LoadScopeScheduling


@functools.cache
def shares(file):
    """One that pytest was told of from outside of its root has an id that is no path from there."""
    return file.is_file() and 'scope="module"' in file.read_text()


class Sharing(LoadScopeScheduling):
    """Tests of a file with a fixture of its module are one worker's, which makes it once; all others go one by one."""

    def _split_scope(self, nodeid):
        file = self.config.rootpath / nodeid.partition("::")[0]
        return str(file) if shares(file) else nodeid

    def remove_node(self, node):
        """What a worker that died has left is nobody's, or the test that ended it would end the others, too."""
        left = (test for unit in self.assigned_work.pop(node).values() for test, done in unit.items() if not done)
        return next(left, None)


@pytest.hookimpl
def pytest_xdist_make_scheduler(config, log):
    return Sharing(config, log) if config.getvalue("dist") == "load" else None
