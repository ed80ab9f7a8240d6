# Every target sets up what it needs in .venv, at the versions of constraints.txt: each package must
# have a hash of hashes.txt, and the project itself comes last, without dependencies.
#
#   TORCH_INDEX=URL   index to install torch from, for example one with builds for CPUs alone, which
#                     are smaller; its torch is not compared with hashes.txt
#   HASHES=no         install by version only, for an index that has files of its own (PIP_INDEX_URL)
#   PYTHON=python3.12 interpreter to make the environment with (3.11 or newer)
#   VENV=folder       folder of the environment
#   SAMPLE=N          kernel tests of each file that `make test-dawn` runs (default: all)
#   DIST=folder       folder of the archives that `make wheel` builds

PYTHON ?= python3
VENV ?= .venv
DIST ?= dist
TORCH_INDEX ?=
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip
HASHES ?= yes
PINS := $(if $(filter no,$(HASHES)),constraints.txt,hashes.txt)
# pip would compile every module, which takes most of its time; Python compiles those that are
# imported, and keeps them.
unexport PYTHONDONTWRITEBYTECODE
INSTALL := $(PIP) install --quiet --no-compile $(if $(filter no,$(HASHES)),,--require-hashes)

DEMO_PACKAGE := demo/small-llama-rdrr
PROMPT ?= And it came to pass
MINUTES ?= 60
CASES ?= 100000
SAMPLE ?=
# Folders of tests that take less than a minute together on two idle cores.
FAST := tests/format tests/manifests tests/api tests/imports
# What `make coverage` measures.
TESTS ?= $(FAST)

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all test-fast coverage fmt lint types check wheel docs fuzz mutation soak adapter dawn test-dawn test-serve web check-web test-web clean

help: ## Show this list.
	@sed -n 's/^\([a-z-]*\):.*## /\1|/p' $(MAKEFILE_LIST) | awk -F'|' '{printf "make %-10s %s\n", $$1, $$2}'

# A stamp for each set of packages: installed again only when the pins or the project file change.
$(VENV)/installed: pyproject.toml constraints.txt hashes.txt
	@echo "Setting up $(VENV)"
	@$(PYTHON) -c 'import sys; sys.exit("rdrr needs Python 3.11 or newer; try make PYTHON=python3.12" if sys.version_info < (3, 11) else 0)'
	@$(PYTHON) -m venv $(VENV) || { echo "Python has no module venv; on Debian: apt-get install python3-venv"; exit 1; }
	@# The pip that Python brings is too old to take hashes from constraints, so it is replaced first.
	@awk '/^pip==/ {on = 1} on; on && !/\\$$/ {exit}' $(PINS) > $(VENV)/pip.txt
	@$(INSTALL) --upgrade --requirement $(VENV)/pip.txt
	@$(BIN)/python .ci/requirements > $(VENV)/requirements.txt
	@$(INSTALL) -c $(PINS) --requirement $(VENV)/requirements.txt
	@$(PIP) install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

$(VENV)/installed-torch: $(VENV)/installed
	@echo "Installing torch in $(VENV) (a large download; TORCH_INDEX=URL picks another index)"
	@HASHES=$(HASHES) .ci/torch $(BIN)/python $(TORCH_INDEX)
	@$(BIN)/python .ci/requirements torch > $(VENV)/requirements-torch.txt
	@$(INSTALL) -c $(PINS) --requirement $(VENV)/requirements-torch.txt
	@touch $@

$(VENV)/installed-dev: $(VENV)/installed-torch
	@$(BIN)/python .ci/requirements remote ray grammar dawn serve images parquet > $(VENV)/requirements-extras.txt
	@$(INSTALL) -c $(PINS) --requirement $(VENV)/requirements-extras.txt --group dev --group docs
	@touch $@

setup: $(VENV)/installed-dev ## Set up .venv for development, with extras, tests, checks, docs.

# The CPU backend runs in torch, so a machine without an adapter needs it.
demo: $(VENV)/installed ## Convert the bundled model, validate the package, generate text.
	@RDRR=$(BIN)/rdrr .ci/adapter --find || $(MAKE) --no-print-directory $(VENV)/installed-torch
	$(BIN)/rdrr convert examples/small-llama $(DEMO_PACKAGE) --overwrite
	$(BIN)/rdrr validate $(DEMO_PACKAGE) --deep
	$(BIN)/rdrr generate $(DEMO_PACKAGE) --prompt "$(PROMPT)" --max-tokens 64 --temperature 0.7 --top-k 40 --seed 3 --stats

adapter: $(VENV)/installed
	@RDRR=$(BIN)/rdrr .ci/adapter

test: $(VENV)/installed-dev adapter ## Run a cover of the tests, for each change (12 minutes on two cores).
	RDRR_TEST_COVER=1 PYTHON=$(BIN)/python .ci/tests -n 2

test-all: $(VENV)/installed-dev adapter ## Run all tests (an hour on two cores).
	PYTHON=$(BIN)/python .ci/tests -n 2

test-fast: $(VENV)/installed-dev adapter ## Run the tests of the format, manifests and API (under a minute).
	$(BIN)/python -m pytest -n 2 -q $(FAST)

coverage: $(VENV)/installed-dev adapter ## Print the coverage of the fast tests (TESTS=tests: of all).
	$(BIN)/python -m pytest -n 2 -q --cov --cov-report=term:skip-covered --cov-report=html $(TESTS)

fmt: $(VENV)/installed-dev ## Format the code and fix what ruff can fix.
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/installed-dev ## Build the documentation in docs/_build/html, without warnings.
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html
	@echo "docs/_build/html/index.html"

lint: $(VENV)/installed-dev ## Check style, format and the direction of imports.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: $(VENV)/installed-dev ## Check the types.
	$(BIN)/mypy

check: lint types test ## Check style, imports and types, and run the tests.

wheel: $(VENV)/installed-dev ## Build the wheel and the source archive in dist, and check both.
	rm -rf $(DIST)
	$(BIN)/python -m hatchling build -d $(DIST)
	$(BIN)/twine check --strict $(DIST)/*
	$(BIN)/check-wheel-contents $(DIST)/*.whl

fuzz: $(VENV)/installed-dev ## Run CASES=100000 hostile cases through every parser (SEED=N).
	PYTHONPATH=tests $(BIN)/python -m fuzz --cases $(CASES) $(if $(SEED),--seed $(SEED)) $(FUZZ)

mutation: $(VENV)/installed-dev adapter ## Plant faults; the tests must find them (MUTATION=names).
	PYTHONPATH=tests $(BIN)/python -m mutation $(MUTATION)

soak: $(VENV)/installed-dev adapter ## Load, generate and close for MINUTES=60; nothing may grow.
	$(BIN)/rdrr convert examples/small-llama demo/soak-rdrr --overwrite --quiet
	PYTHONPATH=tests $(BIN)/python tests/soak.py demo/soak-rdrr --minutes $(MINUTES)

dawn: ## Set up Dawn for Node, so that tests compile shaders with Tint.
	@.ci/dawn

test-dawn: $(VENV)/installed-dev dawn ## Run the tests of the kernels on Dawn (SAMPLE=N: N of each file).
	RDRR_TEST_DEVICE=dawn RDRR_TEST_SAMPLE=$(SAMPLE) $(BIN)/python -m pytest -q tests/runtime/phases

web/node_modules/installed: web/package.json web/package-lock.json
	@command -v npm >/dev/null || { echo "the browser runtime is built with Node.js and npm"; exit 1; }
	@cd web && npm ci --silent --ignore-scripts --no-audit --no-fund --omit-lockfile-registry-resolved
	@touch $@

web: web/node_modules/installed ## Build the browser runtime and its page into api/rdrr/browser.
	@cd web && npm run --silent check && npm run --silent build

check-web: web/node_modules/installed ## Check the browser runtime and test it in Node (a minute).
	@cd web && npm run --silent check && npm run --silent build -- --check && npm test --silent

test-web: $(VENV)/installed-dev adapter check-web ## Test the browser runtime, in Node and Chromium (SHORT=1: a part).
	RDRR_TEST_WEB=1 $(if $(SHORT),RDRR_TEST_COVER=1) $(BIN)/python -m pytest -q tests/web

test-serve: $(VENV)/installed-dev ## Run all tests of the server, with further clients from PyPI.
	@$(PIP) install --quiet -c constraints.txt litellm llm 'lm-eval[api]' 'ray[serve]'
	$(BIN)/python -m pytest -q tests/api/serve tests/runtime/decode/test_scheduler.py tests/runtime/reference/test_batch.py

clean: ## Remove .venv, the archives and what the demo made.
	rm -rf $(VENV) $(DIST) demo
