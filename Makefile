# One command for each thing to do. The tools are set up in pyproject.toml; here is only how they are called.
#
#   PYTHON=python3.12 make demo     another interpreter (3.10 or newer)
#   make test PYTEST="-k rollback"  more arguments for pytest
#   make test PYTEST="--cov"        with branch coverage, which takes a third longer; CI does
#   make gate-check SEEDS=2         fewer healthy engines
#   make faults PARTS="kills"       a part of the fault campaign (docs/faults.md)
#   PIP_EXTRA_INDEX_URL=…           pip's own variable, for example for PyTorch's smaller CPU builds

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

PYTHON ?= python3
VENV ?= .venv
JOBS ?= 2
PYTEST ?=
SEEDS ?= 10
PARTS ?=

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check
PYTHON_VERSION := $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)
# The virtual environment carries what it was made for, so that another PYTHON makes it anew.
MADE := $(VENV)/made-by-python$(PYTHON_VERSION)
CORE := $(VENV)/has-core
DEV := $(VENV)/has-dev

PACKAGES := $(patsubst %/__init__.py,%,$(wildcard */__init__.py))
BESIDE_PACKAGES := $(wildcard tests examples benchmarks docs *.md LICENSE Makefile pyproject.toml .ci)
TYPES := build/types
WHEEL := build/wheel-test

.PHONY: help demo test faults gpu-test gate-check lint types imports wheel-test check format clean types-tree

help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

demo: $(CORE) ## Register, build, validate, promote and roll back a LeNet (no GPU, no PyTorch)
	@PATH="$(abspath $(BIN)):$$PATH" examples/lenet/demo.sh

test: $(DEV) ## Run all tests
	@$(BIN)/pytest -n $(JOBS) $(PYTEST)

faults: $(DEV) ## Run the large fault campaign (PARTS="kills crowd" for some of it) and write docs/faults.md
	@PYTHONPATH=tests/support $(BIN)/python -m modelreg_testing.campaign --jobs $(JOBS) $(PARTS)

gpu-test: $(DEV) ## Build, compare and time engines on this machine's GPU, into build/gpu (needs MODELREG_GPU_TOOLCHAIN)
	@PYTHON=$(abspath $(BIN))/python tests/gpu/run.sh build/gpu

gate-check: $(DEV) ## Take planted faults and healthy engines through the gates, and write docs/gate-check.md
	@PYTHONPATH=tests/support:tests/faults $(BIN)/python -m fault_corpus.campaign --seeds $(SEEDS) --jobs $(JOBS) --write docs/gate-check.md

lint: $(DEV) ## Check style and formatting
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

format: $(DEV) ## Repair style and formatting where that is safe
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

types: $(DEV) types-tree ## Check all types, strictly
	@MYPYPATH=$(TYPES) $(BIN)/mypy -p modelreg | sed 's|^$(TYPES)/modelreg/||'
	@MYPYPATH=$(TYPES):tests/support:tests/faults:examples/lenet:examples/resnet50 $(BIN)/mypy tests benchmarks examples

imports: $(DEV) types-tree ## Check that packages only import what lies below them
	@PYTHONPATH=$(TYPES) $(BIN)/lint-imports --no-cache

wheel-test: $(DEV) ## Build sdist and wheel, and run all tests against the installed wheel
	@echo "Building the sdist, and the wheel from it …"
	@rm -rf $(WHEEL)
	@$(BIN)/python -m build --outdir $(WHEEL)/dist . >/dev/null
	@echo "Installing the wheel with everything that it needs into a new environment …"
	@$(BIN)/python -m venv $(WHEEL)/venv
	@$(WHEEL)/venv/bin/python -m pip --quiet --disable-pip-version-check install "$$(echo $(WHEEL)/dist/*.whl)[dev]"
	@echo "Running the tests from a folder without the packages …"
	@mkdir $(WHEEL)/checkout
	@cp -R $(BESIDE_PACKAGES) $(WHEEL)/checkout
	@cd $(WHEEL)/checkout && env -u PYTHONPATH PATH="$(abspath $(WHEEL))/venv/bin:$$PATH" pytest -n $(JOBS) $(PYTEST)

check: lint types imports test wheel-test ## Do all of the above

clean: ## Remove what these commands made (the virtual environment too)
	rm -rf $(VENV) .demo build dist *.egg-info .coverage .coverage.* htmlcov .mypy_cache .ruff_cache .pytest_cache

# Type checkers and import-linter do not see an editable install of mapped folders; they see this.
types-tree:
	@rm -rf $(TYPES)
	@mkdir -p $(TYPES)/modelreg
	@for package in $(PACKAGES); do ln -s ../../../$$package $(TYPES)/modelreg/$$package; done

define CHECK_PYTHON
import sys
if sys.version_info < (3, 10):
    sys.exit("modelreg needs Python 3.10 or newer, and $(PYTHON) is %d.%d: try PYTHON=python3.12 make demo" % sys.version_info[:2])
try:
    import ensurepip, venv
except ImportError:
    sys.exit("$(PYTHON) cannot make virtual environments: install its venv module (Debian and Ubuntu: apt install python3-venv)")
endef
export CHECK_PYTHON

$(MADE):
	@command -v $(PYTHON) >/dev/null || { echo "There is no $(PYTHON) here: install Python 3.10 or newer, or name one with PYTHON=…" >&2; exit 1; }
	@$(PYTHON) -c "$$CHECK_PYTHON"
	@echo "Setting up $(VENV) with Python $(PYTHON_VERSION) …"
	@$(PYTHON) -m venv $(if $(wildcard $(VENV)/made-by-*),--clear) $(VENV)
	@touch $@

$(CORE): $(MADE) pyproject.toml
	@echo "Installing modelreg and what it needs into $(VENV) (about 100 MB to download) …"
	@$(PIP) install --editable .
	@touch $@

$(DEV): $(MADE) pyproject.toml
	@echo "Installing modelreg and its tools into $(VENV) (PyTorch among them: this takes minutes) …"
	@$(PIP) install --editable '.[dev]'
	@touch $(CORE) $@
