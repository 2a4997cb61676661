# `make demo` and `make test` do all the set-up on a fresh machine with Python 3.11+.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready

.PHONY: setup demo test lint bench experiments clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "swarm-node needs Python 3.11 or newer")'
	@echo "setting up $(VENV): two minutes or more, once"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --only-binary hivemind --constraint constraints.txt --editable '.[plot,dev]'
	touch $(STAMP)

demo: setup
	$(BIN)/swarm-node demo $(DEMO)

test: setup
	$(BIN)/python -m pytest $(PYTEST)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: setup
	$(BIN)/python benchmarks/sampler.py
	$(BIN)/python benchmarks/envelope.py
	$(BIN)/python benchmarks/memory.py
	$(BIN)/python benchmarks/trainer.py

# Hours on two cores; resumes where it stopped. Results are in docs/experiments.md and docs/mixture.md.
experiments: setup
	$(BIN)/python benchmarks/correction.py
	$(BIN)/python benchmarks/losses.py
	$(BIN)/python benchmarks/mixture.py
	$(BIN)/swarm-node experiment sapo --regime dense
	$(BIN)/swarm-node experiment sapo --regime sparse
	$(BIN)/swarm-node experiment sapo --regime very-sparse
	$(BIN)/swarm-node experiment sapo --regime specialised
	$(BIN)/swarm-node experiment heterogeneous --arms 4/4,2/6,adaptive
	$(BIN)/swarm-node experiment staleness
	$(BIN)/swarm-node experiment broad

clean:
	rm -rf $(VENV) demo-report build dist *.egg-info
