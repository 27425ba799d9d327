# make bench: measure here and print the table.   make test: lint, types, the plugin's own tests.
# Each sets up .venv by itself: a CUDA build of torch and the gpu extra where there is an NVIDIA driver, torch's CPU build
# where there is none.

PYTHON ?= python3
VENV ?= .venv
RESULTS ?= results
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
GPU := $(shell nvidia-smi -L 2>/dev/null | grep -c '^GPU')

ifeq ($(GPU),0)
BENCH_NEEDS := -c constraints-cpu.txt -e .
TEST_NEEDS := -c constraints-cpu.txt -e '.[dev,trace]' flashinfer-python
TORCH_IS_RIGHT := True
BENCH_OPTIONS := --perf-iters=10
else
BENCH_NEEDS := -e '.[gpu]'
TEST_NEEDS := -e '.[gpu,dev,trace]'
TORCH_IS_RIGHT := torch.version.cuda or sys.exit("this machine has a GPU and torch " + torch.__version__ + " no CUDA: remove $(VENV)")
endif

.PHONY: bench test clean

bench: $(VENV)/bench-is-ready
	@mkdir -p $(RESULTS)
	@test $(GPU) != 0 || echo "no NVIDIA driver here: the torch backend on the CPU, ten calls each by the wall clock"
	$(BIN)/flashinfer-perf bench --perf-suite=smoke $(BENCH_OPTIONS) --benchmark-json=$(RESULTS)/smoke.json
	@echo "wrote $(RESULTS)/smoke.json: $(BIN)/pytest-benchmark compare $(RESULTS)/smoke.json"

test: $(VENV)/test-is-ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/plugin -n 2 --dist=loadfile -W error --ignore-glob='*/test_gate_[fhpsv]*'
	$(BIN)/coverage run --branch --source=pytest_flashinfer_perf/gate -m pytest -W error tests/plugin/test_gate_[fhpsv]*.py
	$(BIN)/coverage report --fail-under=95

$(VENV)/bench-is-ready: pyproject.toml constraints-cpu.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install $(BENCH_NEEDS)
	@$(BIN)/python -W ignore -c 'import sys, torch; $(TORCH_IS_RIGHT)'
	@touch $@

$(VENV)/test-is-ready: pyproject.toml constraints-cpu.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install $(TEST_NEEDS)
	@$(BIN)/python -W ignore -c 'import sys, torch; $(TORCH_IS_RIGHT)'
	@touch $@

clean:
	rm -rf $(VENV) $(RESULTS)
