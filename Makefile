# `make example` and `make test` need Python 3.11 or later, git and make, and bring all else along.

PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
INSTALLED := $(VENV)/.installed
EXTRAS := ray,gymnasium,postgresql

.PHONY: help install example test prove simulate lint style formatting types mypy pyright \
	wheel-check docs bench mutate clean

help:
	@echo "make example      run the main job: rollouts that survive a kill"
	@echo "make test         run the whole test suite"
	@echo "make prove        explore every state of every operation, for some minutes"
	@echo "make simulate     run a thousand seeds of faults, and crash at every point"
	@echo "make lint         check style and formatting"
	@echo "make types        check the types, with two checkers"
	@echo "make wheel-check  build the package, install it into an empty environment, use it there"
	@echo "make docs         render the charts into the documents"
	@echo "make bench        run the benchmarks"
	@echo "make mutate       try the tests on every mutant of the core and the charts, for an hour"
	@echo "make clean        remove .venv and everything else that was made"

install: $(INSTALLED)

# The stamp is written last, so that what was interrupted is done again.
$(INSTALLED): pyproject.toml Makefile
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "gymckpt needs Python 3.11 or later; '$(PYTHON)' is not." \
	    "Name another one: make PYTHON=python3.12 ..." >&2; exit 1; }
	@echo "Installing into $(VENV) ..."
	@$(PYTHON) -m venv $(VENV)
	@$(PY) -m pip install -qq --disable-pip-version-check --upgrade "pip>=25.1"
	@$(PY) -m pip install -qq --editable ".[$(EXTRAS)]" --group dev
	@touch $@

example: $(INSTALLED)
	@$(PY) examples/survive_a_kill.py

test: $(INSTALLED)
	@$(PY) -m pytest --numprocesses 2 --dist worksteal

prove: $(INSTALLED)
	@$(PY) -m gymckpt.testing.prove

simulate: $(INSTALLED)
	@$(PY) -m gymckpt.testing.simulate --seeds 0:1000
	@$(PY) -m gymckpt.testing.simulate --sweep

lint: style formatting

style: $(INSTALLED)
	@$(PY) -m ruff check .

formatting: $(INSTALLED)
	@$(PY) -m ruff format --check .

types: mypy pyright

mypy: $(INSTALLED)
	@$(PY) -m mypy

pyright: $(INSTALLED)
	@$(PY) -m pyright

wheel-check: $(INSTALLED)
	@$(PY) tools/check_wheel.py

docs: $(INSTALLED)
	@$(PY) docs/render_charts.py

bench: $(INSTALLED)
	@set -e; for one in $$(grep -l __main__ benchmarks/*.py); do echo "== $$one"; $(PY) "$$one"; done

mutate: $(INSTALLED)
	@$(PY) -m pip install -qq --disable-pip-version-check --group mutation
	@$(PY) -m mutmut run --max-children 1
	@$(PY) -m mutmut results

clean:
	@rm -rf $(VENV) build dist *.egg-info .coverage .coverage.* htmlcov
	@rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis mutants
	@find . -name .git -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +
