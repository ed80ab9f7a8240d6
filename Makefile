# `make demo` and `make test` set up by themselves, in .venv, at the versions of constraints.txt.
# What is installed must have a hash of hashes.txt; the project itself comes last and brings nothing.
#
#   TORCH_INDEX=URL   index of torch, e.g. the one with CPU-only builds; its torch needs no known hash
#   HASHES=no         compare no hashes, for an index with files of its own (PIP_INDEX_URL)
#   PYTHON=python3.12 interpreter the environment is made with (3.11 or newer)
#   VENV=folder       where the environment lives
#   MINUTES=60        how long `make soak` runs

PYTHON ?= python3
VENV ?= .venv
TORCH_INDEX ?=
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip
HASHES ?= yes
PINS := $(if $(filter no,$(HASHES)),constraints.txt,hashes.txt)
INSTALL := $(PIP) install --quiet $(if $(filter no,$(HASHES)),,--require-hashes)

DEMO_PACKAGE := demo/small-llama-rdrr
MINUTES ?= 60
PROMPT ?= And it came to pass

.DEFAULT_GOAL := help
.PHONY: help setup demo test fuzz soak lint types check adapter dawn clean

help: ## Show this list.
	@sed -n 's/^\([a-z]*\):.*## /\1|/p' $(MAKEFILE_LIST) | awk -F'|' '{printf "make %-8s %s\n", $$1, $$2}'

# A stamp for each set of packages: installed again only when the pins or the project file change.
$(VENV)/installed: pyproject.toml constraints.txt hashes.txt
	@echo "Setting up $(VENV) (the first time this downloads torch; TORCH_INDEX=URL picks another index)"
	@$(PYTHON) -c 'import sys; sys.exit("rdrr needs Python 3.11 or newer; try make PYTHON=python3.12" if sys.version_info < (3, 11) else 0)'
	@$(PYTHON) -m venv $(VENV) || { echo "No venv module; on Debian: apt-get install python3-venv"; exit 1; }
	@# The pip that Python brings is too old to take hashes from constraints: it gets its own line.
	@awk '/^pip==/ {on = 1} on; on && !/\\$$/ {exit}' $(PINS) > $(VENV)/pip.txt
	@$(INSTALL) --upgrade --requirement $(VENV)/pip.txt
	@HASHES=$(HASHES) .ci/torch $(BIN)/python $(TORCH_INDEX)
	@$(BIN)/python .ci/requirements > $(VENV)/requirements.txt
	@$(INSTALL) -c $(PINS) --requirement $(VENV)/requirements.txt
	@$(PIP) install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

$(VENV)/installed-dev: $(VENV)/installed
	@$(INSTALL) -c $(PINS) --group dev --group docs
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

CASES ?= 100000
fuzz: $(VENV)/installed-dev ## Run hostile cases through every parser (CASES=100000, SEED=N repeats a run).
	PYTHONPATH=tests $(BIN)/python -m fuzz --cases $(CASES) $(if $(SEED),--seed $(SEED)) $(FUZZ)

lint: $(VENV)/installed-dev ## Check style, format and the direction of imports.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: $(VENV)/installed-dev ## Check the types.
	$(BIN)/mypy

check: lint types test ## Everything that CI checks.

clean: ## Remove .venv and what the demo made.
	rm -rf $(VENV) demo
