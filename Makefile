# Eight words: test, slow, lint, replay, bench, demo, fuzz, docs. Each makes what it needs; Python 3.11+ must be there.

PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3 python; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
N ?= 1000
# `make bench ARGS="--quick"`, `make test ARGS="tests/ir -k verify"`, ...
ARGS ?=

VENV := .venv
BENCH := .bench-venv
PIP_FLAGS := --quiet --disable-pip-version-check --constraint constraints.txt
STAMP := $(VENV)/.installed
BENCH_STAMP := $(BENCH)/.installed
PEERS := numba taichi quadrants warp-lang triton

.DEFAULT_GOAL := help
.PHONY: help test slow lint replay bench demo fuzz docs
.DELETE_ON_ERROR:

help:
	@echo 'make test          run the tests             (ARGS="tests/ir -k verify" for some of them)'
	@echo 'make slow          run those that make test leaves out, for their time'
	@echo 'make lint          ruff and pyright'
	@echo 'make replay        what the compiler makes of many kernels, against the record (ARGS=record)'
	@echo 'make demo          the two examples on real input, checked and timed; writes out/'
	@echo 'make bench         tables beside PyTorch, Numba, Taichi, Quadrants, Warp (ARGS=--quick)'
	@echo 'make docs          the pages of docs/ as a site, and the reference from docstrings: site/'
	@echo 'make fuzz N=5000   N random kernels, and derivatives of N, against the Python'

# Threads that spin while they wait take the processors from the tests beside them. Each process has
# half of the folders, so that kernels are compiled in one, and takes from the other's at the end.
# Bytecode is kept, whatever the environment says: tests start hundreds of processes.
test slow: $(STAMP)
	PYTHONDONTWRITEBYTECODE= OMP_WAIT_POLICY=passive $(VENV)/bin/python -m pytest -n auto \
		--dist worksteal -m '$(if $(filter slow,$@),slow,not slow)' $(ARGS)

lint: $(STAMP)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/pyright

replay: $(STAMP)
	$(VENV)/bin/python -m tests.golden $(ARGS)

demo: $(STAMP)
	$(VENV)/bin/python -m examples.demo $(ARGS)

fuzz: $(STAMP)
	WEFT_FUZZ_EXAMPLES=$(N) OMP_WAIT_POLICY=passive $(VENV)/bin/python -m pytest -n auto \
		--dist worksteal -m fuzz -q $(ARGS)

docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict --quiet $(ARGS)
	@echo 'site/index.html'

bench: $(BENCH_STAMP)
	$(BENCH)/bin/python -m benchmarks $(ARGS)

$(STAMP): pyproject.toml constraints.txt
	@test -n '$(PYTHON)' || { echo 'weft needs Python 3.11 or newer on the PATH' >&2; exit 1; }
	@echo 'setting up $(VENV) (once)'
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install $(PIP_FLAGS) --editable '.[cli,demo,plot,test,lint]'
	@$(VENV)/bin/python -m pip install $(PIP_FLAGS) --editable '.[slow-test]' \
		|| echo 'Numba, notebooks or playwright cannot be installed here: their tests say so'
	@$(VENV)/bin/python -m pip install $(PIP_FLAGS) --editable '.[webgpu]' \
		|| echo 'wgpu cannot be installed here: the tests of shaders say so'
	@touch $@

$(VENV)/.docs: $(STAMP)
	$(VENV)/bin/python -m pip install $(PIP_FLAGS) --editable '.[docs]'
	@touch $@

# Each peer is installed by itself: one that has no wheel for this Python must not stop the others.
$(BENCH_STAMP): pyproject.toml constraints.txt
	@test -n '$(PYTHON)' || { echo 'weft needs Python 3.11 or newer on the PATH' >&2; exit 1; }
	@echo 'setting up $(BENCH) with the peers (once)'
	$(PYTHON) -m venv $(BENCH)
	$(BENCH)/bin/python -m pip install $(PIP_FLAGS) --editable '.[cli]'
	@for peer in $(PEERS); do \
		$(BENCH)/bin/python -m pip install $(PIP_FLAGS) $$peer \
			|| echo "$$peer cannot be installed here: its rows will say so"; \
	done
	@touch $@
