"""A program in a process of its own, which is asked."""

import pytest

from pytest_flashinfer_perf.machine.another_process import NoAnswerError, answer


def test_it_has_arguments_and_variables_and_its_error_is_named():
    assert answer("import os, sys; print(sys.argv[1] + os.environ['HERE'])", "7", HERE="8") == "78"
    with pytest.raises(NoAnswerError, match=r"^ZeroDivisionError: division by zero$"):
        answer("1 / 0")
    with pytest.raises(NoAnswerError, match="it ended with 3"):
        answer("import os; os._exit(3)")
