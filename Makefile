# The commands of the project; `make help` lists them.
# `make install` builds the environment in .venv with the versions of envs/constraints.txt, and so does every command that needs it; later
# calls update it when pins change. Needs Python 3.11 or later (to choose another than `python3`: make run PYTHON=python3.12) and
# a package index.

PYTHON ?= python3
BIN := .venv/bin
# A process of tests that dies is named at the end; another in its place would wait for tests that nobody gives it.
ONCE := --max-worker-restart 0
INSTALLED := .venv/installed
# Processes that start compiled take a tenth less, and tests start thousands.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help install run test lint test-slow test-slurm same-numbers gpu clean

help: ## list these commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s%s\n", $$1, $$2 }' Makefile

install: $(INSTALLED) ## make the environment in .venv

run: $(INSTALLED) ## run the default matrix on this machine and write results/report/index.html
	$(BIN)/snakemake --profile profiles/local

# Tests on Slurm and of launchers mostly wait, so five processes keep two cores busy. The longest tests start first.
test: lint ## style and all quick tests; as root and with Slurm's packages also on a real Slurm
	$(BIN)/python -m pytest -m "not slow and not gpu" --numprocesses 5 --no-loadscope-reorder $(ONCE) \
		tests/slurm tests/workflow tests/distributed tests/unit

lint: $(INSTALLED) ## check style and types of the Python code, the Snakefile and the rules
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/snakefmt --check Snakefile rules
	$(BIN)/snakemake --lint

test-slow: $(INSTALLED) ## run the tests that `make test` leaves out: further cases, and what takes minutes
	$(BIN)/python -m pytest -m "slow and not slurm and not gpu" --numprocesses 3 --no-loadscope-reorder $(ONCE) \
		tests/workflow tests/distributed tests/unit

test-slurm: $(INSTALLED) ## run the long tests on a real Slurm (as root, with the packages that .ci/run names)
	$(BIN)/python -m pytest -m "slurm and slow" --numprocesses 3 $(ONCE) tests/slurm

same-numbers: $(INSTALLED) ## show that edited training code trains the same bits, and record it (RAISE=part: it does not)
	$(BIN)/python -m tests.same_numbers $(if $(AGAINST),--against $(AGAINST)) $(if $(RAISE),--raise $(RAISE))

# From a plain clone: any Python that has torch will do (`make gpu PYTHON=...`), and this project's own environment is enough.
gpu: ## try this machine's GPUs, in ten minutes at most; writes check-gpu/check.json, to be sent back
	PYTHONPATH=scripts $(or $(wildcard $(BIN)/python),$(PYTHON)) -m parascale check gpu

clean: ## remove the environment and caches, but no results or unfinished trainings
	rm -rf .venv .pytest_cache .ruff_cache .hypothesis scripts/*.egg-info
	find scripts tests -name __pycache__ -type d -prune -exec rm -rf {} +

$(INSTALLED): envs/constraints.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or later is needed; name one: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --editable '.[train,workflow,dev]' --constraint envs/constraints.txt
	@touch $@
