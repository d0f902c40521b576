# make run    set up, then the flagship paper from data to report
# make test   set up, then all tests
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: run test lint setup benchmarks clean
.DEFAULT_GOAL := run

run: setup
	$(BIN)/paperflows fetch
	$(BIN)/paperflows run bes
	@echo "Read results/bes/README.md, or open results/bes/index.html; runs and curves: $(BIN)/paperflows ui"

# Tests of a data set that cannot be had where they run say so, each for itself.
test: setup
	-$(BIN)/paperflows fetch
	$(BIN)/python -m pytest $(PYTEST)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/lint-imports

setup: $(READY)

# The pins first: a later resolver step finds everything in place and adds nothing.
$(READY): pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { echo "Python 3.11 is needed: install it, or say make PYTHON=/path/to/python3.11"; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[test]'
	@touch $@

benchmarks: setup
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt '.[benchmarks]'
	$(BIN)/python -m benchmarks.bes_speed
	$(BIN)/python -m benchmarks.nano_assembly
	$(BIN)/python -m benchmarks.scheduling
	$(BIN)/python -m benchmarks.optimisers
	$(BIN)/python -m benchmarks.gradient_stabilizer
	$(BIN)/python -m benchmarks.zeroth_order
	$(BIN)/python -m benchmarks.sufficiency
	$(BIN)/python -m benchmarks.falling_trees
	$(BIN)/python -m benchmarks.kernels
	$(BIN)/python -m benchmarks.quaternion_attention
	$(BIN)/python -m benchmarks.orchestration

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache .hypothesis .paperflows
