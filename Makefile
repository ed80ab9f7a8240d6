# `make demo` and `make test` set up by themselves, in .venv, at the versions of constraints.txt.
#
#   TORCH_INDEX=URL   further package index, e.g. the one with CPU-only builds of torch
#   PYTHON=python3.12 interpreter the environment is made with (3.11 or newer)
#   VENV=folder       where the environment lives
#   MINUTES=60        how long `make soak` runs

PYTHON ?= python3
VENV ?= .venv
TORCH_INDEX ?=
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip
FROM := $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))
INSTALL := $(PIP) install --quiet -c constraints.txt $(FROM)

DEMO_PACKAGE := demo/small-llama-rdrr
MINUTES ?= 60
PROMPT ?= And it came to pass

.DEFAULT_GOAL := help
.PHONY: help setup demo test soak lint types check adapter dawn clean

help: ## Show this list.
	@sed -n 's/^\([a-z]*\):.*## /\1|/p' $(MAKEFILE_LIST) | awk -F'|' '{printf "make %-8s %s\n", $$1, $$2}'

# A stamp for each set of packages: installed again only when the pins or the project file change.
$(VENV)/installed: pyproject.toml constraints.txt
	@echo "Setting up $(VENV) (the first time this downloads torch; TORCH_INDEX=URL picks another index)"
	@$(PYTHON) -c 'import sys; sys.exit("rdrr needs Python 3.11 or newer; try make PYTHON=python3.12" if sys.version_info < (3, 11) else 0)'
	@$(PYTHON) -m venv $(VENV) || { echo "No venv module; on Debian: apt-get install python3-venv"; exit 1; }
	@$(INSTALL) --upgrade pip
	@$(INSTALL) --editable .
	@touch $@

$(VENV)/installed-dev: $(VENV)/installed
	@$(INSTALL) --group dev
	@touch $@

setup: $(VENV)/installed-dev ## Set up .venv with everything that tests and checks need.

demo: $(VENV)/installed ## Convert the bundled checkpoint, validate the package, generate text.
	$(BIN)/rdrr convert examples/small-llama $(DEMO_PACKAGE) --transpose-weights --fuse-gate-up --overwrite
	$(BIN)/rdrr validate $(DEMO_PACKAGE) --deep
	$(BIN)/rdrr generate $(DEMO_PACKAGE) --prompt "$(PROMPT)" --max-tokens 64 --temperature 0.7 --top-k 40 --seed 3 --stats

adapter: $(VENV)/installed
	@RDRR=$(BIN)/rdrr .ci/adapter

test: $(VENV)/installed-dev adapter ## Run all tests, those of the GPU kernels included.
	$(BIN)/python -m pytest -n 2

dawn: ## Set up Dawn for Node in .dawn, with which tests compile shaders under Tint.
	@.ci/dawn

soak: $(VENV)/installed-dev adapter ## Load, generate in threads and close for an hour; nothing may grow.
	$(BIN)/rdrr convert examples/small-llama demo/soak-rdrr --overwrite --quiet
	PYTHONPATH=tests $(BIN)/python tests/soak.py demo/soak-rdrr --minutes $(MINUTES)

lint: $(VENV)/installed-dev ## Check style, format and the direction of imports.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: $(VENV)/installed-dev ## Check the types.
	$(BIN)/mypy

check: lint types test ## Everything that CI checks.

clean: ## Remove .venv and what the demo made.
	rm -rf $(VENV) demo
