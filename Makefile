# Needs only Python 3.10 or newer and make. Everything goes into .venv, once; `make clean` removes it.
# Variables: PYTHON (interpreter to build the environment with), NODES and PORT (make kafka), ARGS (given to demo and test).

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= $(firstword $(foreach name,python3 python3.13 python3.12 python3.11 python3.10 python,$(if $(shell $(name) -c 'import sys; print(sys.version_info >= (3, 10) or "")' 2>/dev/null),$(name))))
UV := $(shell command -v uv 2>/dev/null)
BIN := .venv/bin
READY := .venv/.ready
NODES ?= 1
PORT ?= 9092
ARGS ?=
# Lanes of tests beside each other (tests/conftest.py).
LANES := -n auto --dist loadgroup --timeout 300 --durations 10

.PHONY: help demo test lint bench kafka schemas clean

help: ## This list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "make %-9s %s\n", $$1, $$2}' Makefile

demo: $(READY) ## Slow down a real training job on this machine and watch the verdict come
	@$(BIN)/eroica demo $(ARGS)

test: $(READY) ## All tests; those against Apache Kafka need Java 17 and Maven, else they are skipped with a sentence
	@$(BIN)/python -m pytest $(LANES) $(ARGS)

lint: $(READY) ## Format, style, types, and the one-way imports
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@PYTHON=$(BIN)/python bash tools/mypy.sh
	@cd build/links && PYTHONPATH=. ../../$(BIN)/lint-imports --config ../../pyproject.toml --no-cache --no-logo

# 77: a benchmark that lacks what it needs, and has said so.
bench: $(READY) ## Every benchmark, one after the other; those that lack the real data, Java or Maven are left out with a sentence
	@for file in $$(grep -l '^if __name__ == "__main__":' bench/*.py); do \
	  echo "== $$file"; $(BIN)/python "$$file" || { code=$$?; [ $$code -eq 77 ] || exit $$code; }; \
	done

kafka: $(READY) ## Apache Kafka on this machine until Ctrl-C: make kafka NODES=3 PORT=9092
	@$(BIN)/python -m eroica.bus.local --nodes $(NODES) --port $(PORT)

schemas: $(READY) ## Write the JSON Schema files again from the code
	@$(BIN)/eroica schema --out schemas/json

clean: ## Remove the environment and everything that was generated
	@rm -rf .venv build dist ./*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	@rm -f producers/trace/*.abi3.so
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# One stamp, so that an unchanged checkout installs nothing.
$(READY): pyproject.toml constraints.txt
	@if [ -z "$(PYTHON)" ]; then echo "This needs Python 3.10 or newer: install it, or name it with make PYTHON=..." >&2; exit 2; fi
	@echo "Installing into .venv (the first time this takes a few minutes; PyTorch is large) ..." >&2
ifneq ($(UV),)
	@[ -x $(BIN)/python ] || $(UV) venv --quiet --python "$(PYTHON)" .venv
	@$(UV) pip install --quiet --compile-bytecode --python $(BIN)/python -c constraints.txt -e '.[dev]'
else
	@[ -x $(BIN)/python ] || "$(PYTHON)" -m venv .venv || { rm -rf .venv; echo "Python cannot make a virtual environment: install its venv module (Debian: python3-venv), or uv." >&2; exit 2; }
# uv installs the same in a tenth of the time; where it cannot be had, pip does it all.
	@if $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt uv 2>/dev/null; then \
	  $(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python -c constraints.txt -e '.[dev]'; \
	else \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'; \
	fi
endif
	@touch $@
