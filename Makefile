# Needs Python 3.11 or newer, g++ and make; everything else goes into .venv on the first call.
# A GPU is used where there is one; without, the emulator runs the same kernels on the CPU.

BIN := .venv/bin
READY := .venv/ready
READY_DEV := .venv/ready-dev
READY_DOCS := .venv/ready-docs
READY_TORCH := .venv/ready-torch
READY_NOTEBOOKS := .venv/ready-notebooks
READY_POSTGRES := .venv/ready-postgres
READY_NVRTC := .venv/ready-nvrtc
READY_RAY := .venv/ready-ray
export PIP_DISABLE_PIP_VERSION_CHECK := 1
unexport PYTHONDONTWRITEBYTECODE  # without bytecode every process compiles every module again, and pytest every test
SECONDS ?= 60
GPU_SECONDS ?= 240
GPU_TESTS = $(shell grep -rl 'pytest.mark.gpu' tests --include='test_*.py')
TORCH ?= torch==2.13.0
TORCH_TESTS = $(shell grep -rl 'importorskip..torch' tests --include='test_*.py' --exclude-dir=examples)

# Two processes on a machine of two cores, three for test-long; a file's tests stay in one of them, but for variants of
# the contract tests.
# What KERNELS=... names keeps what was compiled, for the next ring; TURNS=4 damages four times as many files. (Behind a
# space pytest would take a folder for a test.)
PYTEST := $(BIN)/python -m pytest --numprocesses auto --maxprocesses 8 --dist loadscope $(KERNELS:%=--kernels=%) $(TURNS:%=--fuzz-turns=%)

# What reads, writes and prints: the tests of the machine that the others do not run on.
MACHINE_TESTS := tests/cli tests/system tests/matrix tests/pruning tests/tuning_db tests/tuning/jobs tests/backends \
	tests/test_encodings.py

# Each of the tests' processes has a core of its own; threads of BLAS would only wait there for each other.
test test-fast test-long test-rest test-all test-torch test-examples: export OPENBLAS_NUM_THREADS := 1

.PHONY: help demo test test-fast test-long test-rest test-all test-gpu test-torch test-examples test-postgres test-ray test-fuzz test-ascii test-user fuzz lint types docs dist clean

help:
	@echo 'make demo   tune a real pruned layer, verify the winner, look it up, read its source (1 minute)'
	@echo 'make test   tests of everything, some 7 minutes on 2 cores; those that need what is not there skip themselves'
	@echo 'make test-fast   most of them in some 35 s: nothing that compiles, starts processes or takes 0.1 s'
	@echo 'make test-long   what make test leaves out: more variants of the kernels, and tests that take long'
	@echo 'make test-rest   that, and the tests that need PyTorch or Jupyter, which it installs'
	@echo 'make test-all    what make test and make test-long run'
	@echo 'make test-gpu    the tests that need a GPU, as many as begin within GPU_SECONDS=240, on all GPUs; a line for each family'
	@echo 'make test-torch  the tests that need PyTorch, which it installs (TORCH=... says which)'
	@echo 'make test-examples  the examples that need PyTorch, and the notebooks; it installs PyTorch and a kernel of Jupyter'
	@echo 'make fuzz   damaged files for every reader, for SECONDS=60'
	@echo 'make test-fuzz   four hundred damaged files for every reader, the same every time'
	@echo 'make test-ascii  what reads, writes and prints, in a locale that is not UTF-8'
	@echo 'make test-user   the same as a user who is not root'
	@echo 'make test-postgres  the tests of the database that need a PostgreSQL server, which they start themselves'
	@echo 'make test-ray  searches on a Ray cluster of this machine, which the tests start themselves; it installs Ray'
	@echo 'make lint   ruff'
	@echo 'make types  mypy --strict over an installed copy'
	@echo 'make docs   the site of the documentation in build/site, every link of which it checks'
	@echo 'make dist   wheel and source archive in dist/, each installed into an empty environment and tried'
	@echo 'make clean  remove .venv and build/'

demo: $(READY)
	@.ci/demo

test: $(READY)
	$(PYTEST) -m 'not long'

test-fast: $(READY)
	$(PYTEST) -m 'not long and not slow' --ignore-glob 'tests/test_contract*'

test-long: $(READY_NVRTC)
	$(PYTEST) -m long

test-rest: $(READY_NVRTC) $(READY_NOTEBOOKS)
	$(PYTEST) -m 'long or torch'

test-all: $(READY_NVRTC)
	$(PYTEST)

test-gpu: $(READY)
	$(PYTEST) --maxprocesses 24 -m gpu --gpu-budget $(GPU_SECONDS) $(GPU_TESTS)

test-torch: $(READY_TORCH)
	$(PYTEST) $(TORCH_TESTS)

test-examples: $(READY_NOTEBOOKS)
	$(PYTEST) tests/examples/test_torch_examples.py tests/examples/test_notebooks.py

fuzz: $(READY)
	$(BIN)/python -m pytest tests/fuzz --fuzz-seconds $(SECONDS)

test-fuzz: $(READY)
	$(BIN)/python -m pytest tests/fuzz --fuzz-turns 4

test-ascii: $(READY)
	LC_ALL=C PYTHONUTF8=0 PYTHONCOERCECLOCALE=0 $(PYTEST) -m 'not long and not slow' $(MACHINE_TESTS)

test-user: $(READY)
	sh tests/as_user.sh $(PYTEST) -p no:cacheprovider -m 'not long and not slow' $(MACHINE_TESTS)

test-postgres: $(READY_POSTGRES)
	$(PYTEST) tests/tuning_db tests/examples/test_examples.py -k 'postgres or server'

test-ray: $(READY_RAY)
	$(BIN)/python -m pytest tests/tuning/test_ray_engine.py

lint: $(READY_DEV)
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .

# In an editable install mypy skips the packages that pyproject.toml maps to other folders, so it gets a copy.
types: $(READY_DEV)
	rm -rf build/lib build/typecheck
	$(BIN)/python -m pip install --quiet --no-deps --target build/typecheck .
	cd build/typecheck && ../../$(BIN)/python -m mypy --config-file ../../pyproject.toml -p sparsegen

# Read it with a browser: build/site/index.html; searching needs a server, `python -m http.server -d build/site`.
docs: $(READY_DOCS)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

dist:
	@.ci/dist

clean:
	rm -rf .venv build dist

$(READY): pyproject.toml .ci/setup
	@.ci/setup

$(READY_TORCH): $(READY)
	$(BIN)/python -m pip install --quiet '$(TORCH)'
	@touch $@

$(READY_NOTEBOOKS): $(READY_TORCH)
	$(BIN)/python -m pip install --quiet --editable '.[notebooks]'
	@touch $@

$(READY_POSTGRES): $(READY)
	$(BIN)/python -m pip install --quiet --editable '.[postgres]'
	@touch $@

$(READY_NVRTC): $(READY)
	$(BIN)/python -m pip install --quiet --editable '.[nvrtc]'
	@touch $@

# Ray has wheels for some Pythons and systems alone.
$(READY_RAY): $(READY)
	@$(BIN)/python -m pip install --quiet --editable '.[ray,postgres]' || { \
		echo 'make test-ray: Ray could not be installed, for want of a network or of a wheel for this Python;' \
			'every other test runs without it'; exit 1; }
	@touch $@

$(READY_DOCS): $(READY)
	$(BIN)/python -m pip install --quiet --editable '.[docs]'
	@touch $@

$(READY_DEV): $(READY)
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $@
