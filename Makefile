# Needs Python 3.11 or newer, g++ and make; everything else goes into .venv on the first call.
# A GPU is used where there is one; without, the emulator runs the same kernels on the CPU.

BIN := .venv/bin
READY := .venv/ready
READY_DEV := .venv/ready-dev
READY_TORCH := .venv/ready-torch
READY_POSTGRES := .venv/ready-postgres
export PIP_DISABLE_PIP_VERSION_CHECK := 1
SECONDS ?= 60
TORCH ?= torch==2.13.0
TORCH_TESTS := tests/integrations tests/matrix/test_formats_torch.py tests/pruning/test_torch.py \
	tests/plan/test_dense_launcher.py tests/bench/test_studies.py tests/bench/test_torch_contenders.py

# Two processes on a machine of two cores; a file's tests stay in one of them, but for variants of the contract tests.
PYTEST := $(BIN)/python -m pytest --numprocesses auto --maxprocesses 8 --dist loadgroup

.PHONY: help demo test test-fast test-all test-torch test-postgres test-fuzz fuzz lint types clean

help:
	@echo 'make demo   tune a real pruned layer, verify the winner, look it up, read its source (1 minute)'
	@echo 'make test   tests of everything, some 5 minutes on 2 idle cores; those that need what is not there skip themselves'
	@echo 'make test-fast   the same without the contract tests and whatever took 0.25 s of CPU time or more'
	@echo 'make test-all    every test, all variants of every kernel, some 10 minutes'
	@echo 'make test-torch  the tests that need PyTorch, which it installs (TORCH=... says which)'
	@echo 'make fuzz   damaged files for every reader, for SECONDS=60'
	@echo 'make test-fuzz   four hundred damaged files for every reader, the same every time'
	@echo 'make test-postgres  the tests of the database that need a PostgreSQL server, which they start themselves'
	@echo 'make lint   ruff'
	@echo 'make types  mypy --strict over an installed copy'
	@echo 'make clean  remove .venv and build/'

demo: $(READY)
	@.ci/demo

test: $(READY)
	$(PYTEST) -m 'not long'

test-fast: $(READY)
	$(PYTEST) -m 'not long and not slow'

test-all: $(READY)
	$(PYTEST) --fuzz-turns 4

test-torch: $(READY_TORCH)
	$(BIN)/python -m pytest $(TORCH_TESTS)

fuzz: $(READY)
	$(BIN)/python -m pytest tests/fuzz --fuzz-seconds $(SECONDS)

test-fuzz: $(READY)
	$(BIN)/python -m pytest tests/fuzz --fuzz-turns 4

test-postgres: $(READY_POSTGRES)
	$(BIN)/python -m pytest tests/tuning_db -k postgres

lint: $(READY_DEV)
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .

# In an editable install mypy skips the packages that pyproject.toml maps to other folders, so it gets a copy.
types: $(READY_DEV)
	rm -rf build/lib build/typecheck
	$(BIN)/python -m pip install --quiet --no-deps --target build/typecheck .
	cd build/typecheck && ../../$(BIN)/python -m mypy --config-file ../../pyproject.toml -p sparsegen

clean:
	rm -rf .venv build

$(READY): pyproject.toml .ci/setup
	@.ci/setup

$(READY_TORCH): $(READY)
	$(BIN)/python -m pip install --quiet '$(TORCH)'
	@touch $@

$(READY_POSTGRES): $(READY)
	$(BIN)/python -m pip install --quiet --editable '.[postgres]'
	@touch $@

$(READY_DEV): $(READY)
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $@
