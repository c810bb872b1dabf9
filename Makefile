PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CONSTRAINTS := constraints.txt

.PHONY: help demo demo-resize test test-pythons bench lint clean

help:
	@echo 'make demo         three real jobs share this machine under the service; 2 to 3 minutes'
	@echo 'make demo-resize  one real job, resized four times while it trains; half a minute'
	@echo 'make test         all tests; a quarter of an hour'
	@echo 'make bench        all benchmarks, into benchmarks/RESULTS.md'
	@echo 'make lint         ruff and mypy'
	@echo 'make clean        delete .venv and what was built'

$(VENV)/installed: setup.py $(CONSTRAINTS)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint $(CONSTRAINTS) pip setuptools wheel
	$(BIN)/pip install --quiet --constraint $(CONSTRAINTS) --editable '.[mxnet,scheduler,service,test]'
	touch $@

# The demos need the service and its policies, not the test tools.
$(VENV)/installed-demo: setup.py $(CONSTRAINTS)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint $(CONSTRAINTS) pip setuptools wheel
	$(BIN)/pip install --quiet --constraint $(CONSTRAINTS) --editable '.[mxnet,scheduler,service,demo]'
	touch $@

demo: $(VENV)/installed-demo
	$(BIN)/elastic-mx demo

demo-resize: $(VENV)/installed-demo
	$(BIN)/elastic-mx demo-resize

test: $(VENV)/installed lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests

# A real job on each Python and NumPy that this machine has; some ten minutes.
test-pythons:
	$(PYTHON) tests/pythons.py

bench: $(VENV)/installed
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.report

lint: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:
	rm -rf $(VENV) build *.egg-info
