# Everything here works on a fresh machine with nothing but Python 3.11+ and make: the first call builds .venv from
# the exact versions of constraints.txt, later calls reuse it until pyproject.toml or constraints.txt change.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Options for pytest, e.g. make test ARGS="-k coupling -x"
ARGS ?=

# The models are small: one thread per process, and the processes share the cores.
export OMP_NUM_THREADS ?= 1

.DEFAULT_GOAL := help
.PHONY: help demo test lint bench docs docs-serve

help: ## show this list
	@grep -hE '^[a-z-]+:.*## ' Makefile | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 20

demo: $(VENV)/.installed-demo ## train three small models on this machine's CPU and write report.html (about 3 minutes)
	$(BIN)/python -m fsn demo

# Lint runs beside the tests: mypy without its cache keeps one core busy for half a minute. Both finish, whatever the other
# says; what lint has found comes after the tests' own summary.
test: $(VENV)/.installed-dev ## ruff, mypy and all the tests
	@log=$$(mktemp); \
	$(MAKE) --no-print-directory lint >$$log 2>&1 & lint=$$!; \
	trap 'kill $$lint 2>/dev/null; rm -f $$log; exit 130' INT TERM; \
	status=0; $(BIN)/python -m pytest -n auto --maxprocesses 4 --dist worksteal -q $(ARGS) || status=1; \
	wait $$lint || { status=1; echo "lint failed:"; }; \
	cat $$log; rm -f $$log; exit $$status

lint: $(VENV)/.installed-dev ## ruff (rules and format) and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy src $(wildcard benchmarks)

bench: $(VENV)/.installed-dev ## speed and memory of a step, after a correctness check
	$(BIN)/python -m benchmarks.step

# Strict: a link that leads nowhere is an error.
docs: $(VENV)/.installed-docs ## the documentation as a site, in site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

docs-serve: $(VENV)/.installed-docs ## the same on a local port, built again whenever a page changes
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs serve

$(BIN)/pip:
	@command -v $(PYTHON) >/dev/null || { \
	  echo "fsn needs Python 3.11 or newer, and '$(PYTHON)' was not found: install it, or name yours with PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "fsn needs Python 3.11 or newer, and '$(PYTHON)' is $$($(PYTHON) --version 2>&1): name a newer one with PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { \
	  echo "'$(PYTHON) -m venv' failed: on Debian and Ubuntu it needs the package python3-venv" >&2; exit 1; }

# .installed-demo has what the demo needs; .installed-dev has that and the tools. A terminal sees pip's progress.
$(VENV)/.installed-%: pyproject.toml constraints.txt | $(BIN)/pip
	@echo "installing fsn[$*] into $(VENV) (the first time this downloads torch: a few minutes)"
	@[ -t 1 ] || quiet=--quiet; $(BIN)/python -m pip install $$quiet --disable-pip-version-check -c constraints.txt -e '.[$*]'
	@touch $@
