# Every target sets up what it needs by itself; the second time that takes no time.
# Pass arguments on with ARGS: make test ARGS="tests/clients -k kcat", make bench ARGS="--quick".

SHELL := /bin/sh
PYTHON ?= $(shell for python in python3 python3.11 python3.12 python3.13 python3.14; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; done)
ARGS ?=
# Test files are shared out among this many processes, each with brokers of its own, one with Spark.
WORKERS ?= 4
PYTEST := .venv/bin/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

# The tests start hundreds of processes: each would compile Klamm anew where bytecode is not kept.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test test-long check bench screenshots versions faults simulate lint setup setup-run clean

help: ## show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

demo: setup-run ## start three brokers with live topics, and pipelines on Spark that read them
	@.venv/bin/python -m klamm.cli.demo

test: setup lint ## check the code, then run the tests
	@$(PYTEST) $(ARGS)

test-long: setup lint ## make test, and with it what is slow and rarely breaks
	@$(PYTEST) -m "not faults" $(ARGS)

check: setup lint ## linter, formatter, types and house rules
	@.venv/bin/python -m pytest -q tests/test_tidy.py

lint: setup
	@.venv/bin/ruff check --quiet
	@.venv/bin/ruff format --quiet --check || { echo "run: .venv/bin/ruff format"; exit 1; }
	@.venv/bin/mypy --no-error-summary

bench: setup ## measure Klamm beside Apache Kafka
	@.venv/bin/python -m bench $(ARGS)

screenshots: setup ## take the pictures of docs/console anew
	@.venv/bin/python -m tests.console.screenshots $(ARGS)

versions: setup ## test with the oldest and the newest version of each dependency
	@.venv/bin/python scripts/versions.py $(ARGS)

faults: setup ## all kinds of faults under load: MINUTES=n on a cluster, SEED=n for others, REPORT=file
	@.venv/bin/python -m pytest -m faults -o faulthandler_timeout=0 -rP $(ARGS)

simulate: setup-run ## HOURS=n of a simulated cluster under faults, by WORKERS=n processes; SEED=n runs one seed again
	@.venv/bin/python -m klamm.testing.simulation

setup: .python-found ## set up all that the other targets need
	@$(PYTHON) scripts/setup.py test

setup-run: .python-found
	@$(PYTHON) scripts/setup.py run

.PHONY: .python-found
.python-found:
	@test -n "$(PYTHON)" || { echo "setup: Klamm needs Python 3.11 or newer: install python3 and python3-venv"; exit 1; }

clean: ## remove the environment, the caches and what was built
	rm -rf .venv .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
