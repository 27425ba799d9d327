"""What FlashInfer's compiler says of a module that does not compile."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from toolkit import Toolkit

from pytest_flashinfer_perf.machine import builds
from pytest_flashinfer_perf.machine.builds import CompileError

pytest.importorskip("flashinfer", exc_type=ImportError)
PLANTED = """
    import contextlib
    import pytest
    from flashinfer.jit.core import gen_jit_spec
    from pytest_flashinfer_perf.routines.gemm.mm_bf16 import mm_bf16

    def load(name):
        gen_jit_spec(name, [__file__.replace("test_it.py", f"{name}.cu")]).build_and_load()

    def build(p, x, how):
        with contextlib.suppress(RuntimeError):  # the compiler writes nothing that could be loaded
            load("right")
        load("broken")
        return mm_bf16.backends["torch"].build(p, x, how)

    mm_bf16.backend("mine")(build)

    @pytest.mark.perf_cases(mm_bf16, "--m 4 --n 64 --k 128", "--m 5 --n 64 --k 128", "--m 6 --n 64 --k 128")
    def test_mm(perf, case):
        perf(case)

    @pytest.mark.parametrize("nth", [1, 2])
    def test_mine(perf, nth):
        load("broken_too")
"""


def test_what_does_not_compile_fails_its_cases_in_one_sentence(session, pytester, tmp_path, monkeypatch):
    """It is compiled once, for a test with a case as for one without."""
    toolkit = Toolkit(tmp_path)
    for name, value in toolkit.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("BROKEN", "broken")
    sources = {name: pytester.makefile(".cu", **{name: ""}) for name in ("right", "broken", "broken_too")}
    done = session("-k", "mine or torch", process=True, test_it=PLANTED)
    assert (done.outcomes["failed"], done.outcomes["passed"]) == (5, 3), done.out
    for name, failed in (("broken", 3), ("broken_too", 2)):
        sentence = f"FlashInfer's module {name} does not compile: {sources[name]}(12): error: no such kernel"
        assert done.out.count(sentence) == failed
    assert "Traceback" not in done.out
    of_modules = sorted(Path(out).parent.name for out in toolkit.compiled)
    assert of_modules == ["broken", "broken_too", "right", "right"], "each file once"
    left = done.document["flashinfer_perf"]["unmeasured"]
    assert [case["ended"] for case in left if "ended" in case] == ["not-compiled"] * 3


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
    spec = SimpleNamespace(name="m", build_dir="/c/m", ninja_path="/c/m/build.ninja")
    said = iter([RuntimeError("no CUDA"), RuntimeError(f"Ninja build failed. Ninja output:\n{FAILED}x: error: y")])

    def build(_spec):
        raise next(said)

    monkeypatch.setattr(builds, "broken", {})
    watched = builds._watched(build)
    with pytest.raises(RuntimeError, match=r"^no CUDA$"):
        watched(spec)
    sentence = r"m does not compile: x: error: y\n.*: ninja -C /c/m -f /c/m/build.ninja"
    for _ in range(2):
        with pytest.raises(CompileError, match=sentence):
            watched(spec)


def test_a_command_is_told_what_is_compiled_and_not_what_is_there():
    begun, build = [], builds._watched(lambda spec: spec.name)
    forget = builds.tell(begun.append)
    specs = [SimpleNamespace(name="gemm", is_compiled=False), SimpleNamespace(name="decode", is_compiled=True)]
    assert list(map(build, specs)) == ["gemm", "decode"]
    forget()
    assert build(specs[0]) == "gemm"
    assert begun == ["gemm"]
