# Everything runs in .venv, which `make setup` builds and every other target asks for. Nothing global is touched.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: setup demo test check format bench docs clean

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt torch
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	$(BIN)/pip install --quiet --no-deps rxnmapper==0.4.3  # a really trained ALBERT, for the tests; its own pins are old
	touch $(READY)

demo: setup
	$(BIN)/litebert demo

test: setup
	$(BIN)/pytest -n auto

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pytest -n auto

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: setup
	$(BIN)/python bench/tokenizer.py

docs: setup
	$(BIN)/sphinx-build --fail-on-warning --quiet docs docs/_build
	@echo open docs/_build/index.html

clean:
	rm -rf $(VENV) docs/_build runs
