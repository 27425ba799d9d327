"""What FlashInfer's compiler says of a module that does not compile."""

import pytest

from pytest_flashinfer_perf.machine import builds
from pytest_flashinfer_perf.machine.builds import CompileError

NINJA = "ninja: Entering directory `/c/x'\n[1/3] g++ -Werror -c a.cc -o a.o\n"
FAILED = f"{NINJA}FAILED: [code=2] /c/x/a.cuda.o \nnvcc -Werror -c a.cu -o a.cuda.o\n"


@pytest.mark.parametrize(
    ("output", "error"),
    [
        (f"{FAILED}a.cu(3): warning: x\na.cu(7): error: no y\n1 error\n", "a.cu(7): error: no y"),
        (f"{FAILED}In file included from a.cu:1:\na.h:9:2: fatal error: no b.h\n", "a.h:9:2: fatal error: no b.h"),
        (f"{FAILED}ld: cannot find -lcudart: No such file\n", "ld: cannot find -lcudart: No such file"),
        (f"{FAILED}/bin/sh: 1: nvcc: not found\nninja: build stopped\n", "/bin/sh: 1: nvcc: not found"),
        (f"{FAILED}Killed\n[2/3] other\nninja: build stopped: subcommand failed.\n", "Killed"),
        ("ninja: error: 'a.cu', needed by 'a.o', missing\n", "ninja: error: 'a.cu', needed by 'a.o', missing"),
        ("", "ninja ended without a word"),
    ],
)
def test_the_first_error_is_the_compilers(output, error):
    assert builds.first_error(output) == error


def test_other_errors_of_a_build_are_left_alone(monkeypatch):
    class Spec:
        name, build_dir, ninja_path = "m", "/c/m", "/c/m/build.ninja"

    said = iter([RuntimeError("no CUDA"), RuntimeError(f"Ninja build failed. Ninja output:\n{FAILED}x: error: y")])

    def build(_spec):
        raise next(said)

    monkeypatch.setattr(builds, "broken", {})
    watched = builds._watched(build)
    with pytest.raises(RuntimeError, match=r"^no CUDA$"):
        watched(Spec())
    for _ in range(2):
        with pytest.raises(
            CompileError, match=r"m does not compile: x: error: y\n.*: ninja -C /c/m -f /c/m/build.ninja"
        ):
            watched(Spec())
