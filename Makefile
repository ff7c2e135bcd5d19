# The commands of the project; `make help` lists them.
# `make install`, and every command that needs it, builds the environment .venv with the versions in envs/constraints.txt, and updates it
# when these change. Needs a package index and Python 3.11 or later (if `python3` is older: make run PYTHON=python3.12).

PYTHON ?= python3
BIN := .venv/bin
# Do not replace a test process that dies: pytest-xdist would not give the new one any tests. The dead one is named at the end.
ONCE := --max-worker-restart 0
INSTALLED := .venv/installed
# With compiled files, processes start 10 % faster, and tests start thousands.
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

test-slow: $(INSTALLED) ## run the tests that `make test` leaves out: more cases, and tests that take minutes
	$(BIN)/python -m pytest -m "slow and not slurm and not gpu" --numprocesses 3 --no-loadscope-reorder $(ONCE) \
		tests/workflow tests/distributed tests/unit

test-slurm: $(INSTALLED) ## run the long tests on a real Slurm (as root, with the packages that .ci/run names)
	$(BIN)/python -m pytest -m "slurm and slow" --numprocesses 3 $(ONCE) tests/slurm

same-numbers: $(INSTALLED) ## show that edited training code trains the same bits, and record it (RAISE=part: it does not)
	$(BIN)/python -m tests.same_numbers $(if $(AGAINST),--against $(AGAINST)) $(if $(RAISE),--raise $(RAISE))

# Also works in a fresh clone with any Python that has torch: `make gpu PYTHON=...`.
gpu: ## test this machine's GPUs, in at most ten minutes; writes check-gpu/check.json, to send back
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
