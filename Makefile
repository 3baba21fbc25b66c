# Everything runs in .venv, which `make setup` builds and every other target asks for. Nothing global is touched.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: help setup demo test test-slow check format hooks bench docs clean

help:  ## What can be made
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY)  ## Build .venv with litebert and everything that development needs

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt torch
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	$(BIN)/pip install --quiet --no-deps rxnmapper==0.4.3  # a really trained ALBERT, for the tests; its own pins are old
	touch $(READY)

demo: setup  ## The guided tour: text to tokenizer to model to classifier, offline
	$(BIN)/litebert demo

test: setup  ## The tests that every change must pass
	$(BIN)/pytest -n auto -m 'not slow'

test-slow: setup  ## The long ones: kills, several processes, emulators, sanitizers, fuzzing, many Hypothesis examples
	LITEBERT_HYPOTHESIS=thorough $(BIN)/pytest -n auto -m 'slow or hypothesis'

check: setup  ## Format, lint, types, tests: what must pass before a change is merged
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pytest -n auto -m 'not slow'

format: setup  ## Format the code and mend what the linter can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

hooks: setup  ## Run format, lint and types before each commit and push
	$(BIN)/pip install --quiet pre-commit
	$(BIN)/pre-commit install --hook-type pre-commit --hook-type pre-push

bench: setup  ## The tokenizer's benchmark; bench/ has one script for each claim
	$(BIN)/python bench/tokenizer.py

docs: setup  ## Build the pages of docs/ into docs/_build
	$(BIN)/sphinx-build --fail-on-warning --quiet docs docs/_build
	@echo open docs/_build/index.html

clean:  ## Remove .venv, built pages and runs
	rm -rf $(VENV) docs/_build runs
