# make bench: measure here and print tables: the smallest shapes of all routines on a GPU, and ten cases of half a minute,
# with the gate at work, where there is none. make bench-smoke: the former anywhere, minutes on a CPU.
# make test: lint, types and the plugin's own tests, which need neither a clock nor a network: make lint, make test-gate,
# make test-plugin. The same examples are tried each time.
# make test-more: what is about clocks, load, limits, races, browsers, pip or a network, and properties by new examples.
# make consumers: the programs that read what is written here, from the package index, on real files.
# make docs: the documents as a site with search, in $(RESULTS)/site; a link to nothing and a page outside its navigation fail.
# make test-core: a copy without the extensions, whose tests pass, and which measures attention, GEMM and MoE.
# make test-avx2, make test-lowest: some of these tests again, as on a CPU without AVX-512 and with the lowest declared versions.
# Each sets up .venv by itself: with the gpu extra where there is an NVIDIA driver. Where there is none, torch's CPU build
# does, if pip knows where that is: docs/README.md.

# Threads that wait for each other at every small kernel cost minutes where others use the cores.
test test-more lint test-gate test-plugin test-core test-avx2 test-lowest: export OMP_NUM_THREADS ?= 1

# Python compiles a module when it is first imported, and keeps that: most of what is installed never is.
unexport PYTHONDONTWRITEBYTECODE

PYTHON ?= python3
VENV ?= .venv
RESULTS ?= results
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip --disable-pip-version-check --quiet install --no-compile
GPU := $(shell nvidia-smi -L 2>/dev/null | grep -c '^GPU')

ifeq ($(GPU),0)
BENCH_NEEDS := -c constraints-cpu.txt -e '.[bench,report]'
TEST_NEEDS := -c constraints-cpu.txt -e '.[dev,trace]' flashinfer-python
TORCH_IS_RIGHT := True
BENCH_OPTIONS := --perf-iters=10
else
BENCH_NEEDS := -e '.[gpu,report]'
TEST_NEEDS := -e '.[gpu,dev,trace]'
TORCH_IS_RIGHT := torch.version.cuda or sys.exit("this machine has a GPU and torch " + torch.__version__ + " no CUDA: remove $(VENV)")
endif

# A test that takes two minutes shows where it is, and after ten its process ends. A worker that ends is not replaced:
# the run ends with what the others have in hand. What even so does not end is interrupted.
TESTS ?= tests/plugin
LIMITED := timeout --foreground --signal=INT --kill-after=30 7200
OPTIONS := -W error --durations=25 -o faulthandler_timeout=120 --timeout=600 --timeout-method=thread
SAME := --hypothesis-profile=ci -m 'not more'
PYTEST := $(LIMITED) $(BIN)/python -m pytest $(OPTIONS)

# What the instructions of a CPU decide, and what the versions of pytest, its plugins and hypothesis do. For these it is
# enough that one session of the gate starts two more, to confirm what is slower.
OF_THE_CPU := extensions/test_docs_programs engine/test_planted_faults plugin/test_refcheck checking/test_sample \
  routines/test_quantise extensions/vllm/test_vllm
OF_PYTEST := extensions/fuzz/test_profiles extensions/fuzz/test_runs plugin/test_plugin \
  plugin/test_rows plugin/test_selection plugin/test_session_gate
files = $(1:%=tests/plugin/%.py)
# The lowest that pyproject.toml declares, in a folder that comes before what is installed.
LOWEST := $(VENV)/lowest
FLOORS := sed -n 's/^  "\(pytest[a-z-]*\|hypothesis\)>=\([0-9.]*\)",$$/\1==\2/p' pyproject.toml

# The core is all but these. What its engine, checks and routines do is the same without extensions, and `make test` has
# tried it: the rooms where hooks are called are those to run, or all by CORE_TESTS=tests/plugin.
BEYOND_CORE := pytest_flashinfer_perf/extensions tests/plugin/extensions tests/comm tests/api \
  tests/attention/test_vllm_decode.py
CORE := $(RESULTS)/core
CORE_TESTS ?= $(addprefix tests/plugin/,cli package plugin rows session settings spec)
ON_CORE := $(LIMITED) $(abspath $(BIN))/python -m pytest

# The extra `docs` alone, without the project, which would want torch.
DOCS := sed -n '/^docs = \[/,/^]/s/^  "\(.*\)",$$/\1/p' pyproject.toml

.PHONY: ready bench bench-smoke consumers docs test test-more lint test-gate test-plugin test-core test-avx2 test-lowest clean

ready: $(VENV)/test-is-ready $(VENV)/bench-is-ready $(VENV)/docs-is-ready

ifeq ($(GPU),0)
bench: $(VENV)/bench-is-ready
	@$(BIN)/python -W ignore tools/first_screen.py $(RESULTS)/first
else
bench: bench-smoke
endif

bench-smoke: $(VENV)/bench-is-ready
	@mkdir -p $(RESULTS)
	$(BIN)/flashinfer-perf bench --perf-suite=smoke $(BENCH_OPTIONS) --benchmark-json=$(RESULTS)/smoke.json
	@echo "go on with:"
	@echo "  $(BIN)/flashinfer-perf report $(RESULTS)/smoke.json -o report.html"
	@echo "  $(BIN)/flashinfer-perf doctor"
	@echo "  $(BIN)/pytest test_my_kernel.py    a kernel of your own, as in README"

consumers: $(VENV)/test-is-ready
	$(LIMITED) $(BIN)/python tests/acceptance/consumers.py

docs: $(VENV)/docs-is-ready
	$(BIN)/python -m sphinx -W --keep-going -q -c docs/site . $(RESULTS)/site

# The first two are one process each, and two cores take both at once.
test: $(VENV)/test-is-ready
	$(MAKE) --jobs=2 --output-sync --no-print-directory lint test-gate
	$(MAKE) --no-print-directory test-plugin
	@echo "make test-more runs the rest: clocks, load, limits, races, browsers, pip, and properties by new examples"

test-more: $(VENV)/test-is-ready
	$(PYTEST) -n 3 --dist=load --max-worker-restart=0 -m 'more or hypothesis' $(TESTS)

lint: $(VENV)/test-is-ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test-gate: $(VENV)/test-is-ready
	$(LIMITED) $(BIN)/coverage run --branch --source=pytest_flashinfer_perf/gate -m pytest $(OPTIONS) $(SAME) tests/plugin/gate
	$(BIN)/coverage report --fail-under=95

# Three for two cores: a third of their time these tests wait for a process or a clock.
test-plugin: $(VENV)/test-is-ready
	$(PYTEST) -n 3 --dist=load --max-worker-restart=0 $(SAME) $(TESTS) --ignore=tests/plugin/gate

# What is installed is named by a path behind the copy's, and behind the folder's that it is installed in, which has no
# checkout around it.
test-core: $(VENV)/test-is-ready
	rm -rf $(CORE)
	mkdir -p $(CORE)
	tar --create $(addprefix --exclude=./,.git $(VENV) $(RESULTS) $(BEYOND_CORE)) . | tar --extract --directory=$(CORE)
	cd $(CORE) && PYTHONPATH=$(abspath $(CORE)) $(ON_CORE) $(OPTIONS) $(SAME) -n 2 --max-worker-restart=0 $(CORE_TESTS)
	site=$$(mktemp --directory) && trap "rm -r $$site" EXIT && \
	  $(INSTALL) --no-deps --no-build-isolation --no-index --target $$site ./$(CORE) && \
	  cd $$site && export PYTHONPATH=$$site && bin/flashinfer-perf list && \
	  $(LIMITED) bin/flashinfer-perf bench --perf-suite=smoke -k torch --perf-device=cpu --perf-iters=3

test-avx2: $(VENV)/test-is-ready
	ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 $(PYTEST) $(SAME) $(call files,$(OF_THE_CPU))

test-lowest: $(LOWEST)
	PYTHONPATH=$(LOWEST) $(PYTEST) $(SAME) $(call files,$(OF_PYTEST)) -k 'not (session_gate and (measured_again or busy_machine))'

$(LOWEST): $(VENV)/test-is-ready
	rm -rf $@
	$(INSTALL) --target $@ $$($(FLOORS))

# What the tests need holds it.
$(VENV)/bench-is-ready: pyproject.toml constraints-cpu.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	test $(VENV)/test-is-ready -nt pyproject.toml -a $(VENV)/test-is-ready -nt constraints-cpu.txt || $(INSTALL) $(BENCH_NEEDS)
	@$(BIN)/python -W ignore -c 'import sys, torch; $(TORCH_IS_RIGHT)'
	@touch $@

$(VENV)/test-is-ready: pyproject.toml constraints-cpu.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(INSTALL) $(TEST_NEEDS)
	@$(BIN)/python -W ignore -c 'import sys, torch; $(TORCH_IS_RIGHT)'
	@touch $@

$(VENV)/docs-is-ready: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(INSTALL) $$($(DOCS))
	@touch $@

clean:
	rm -rf $(VENV) $(RESULTS)
