import pytest
from traceset_runs import CONFIG, Judges


@pytest.fixture(scope="session")
def judge(tmp_path_factory):
    """Evaluates a solution: `Judges`. One process judges all of them, the one that the solution before has left."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("FIB_CACHE_PATH", str(tmp_path_factory.mktemp("builds")))
        judges = Judges(tmp_path_factory.mktemp("set"), CONFIG)
        yield judges
        judges.close()
