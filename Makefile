# The index of verbs. Each sets up what it needs by itself; recipes only call `python -m ...`, pytest and the linters.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help reproduce record figs bench bench-peers torchrec-plans bench-compare gpu test test-slow lint clean

# The first of these that is 3.11 or newer; `make PYTHON=path ...` overrides it.
PYTHON ?= $(firstword $(foreach p,python3.11 python3,$(shell $(p) -c 'import sys; sys.version_info >= (3, 11) and print("$(p)")' 2>/dev/null)))
JOBS ?= 2
BIN := .venv/bin
PY := $(BIN)/python
READY := .venv/ready
PEERS := .venv-peers/ready
# TorchRec names the CUDA build of FBGEMM among what it needs, so it goes in without its list, and this is the rest of it.
TORCHREC_NEEDS := torchmetrics==1.0.3 tensordict pyre-extensions iopath tqdm
OUT ?= runs
# Numba and torch have threads of their own: one's must not spin after a call while the other's need the cores.
export OMP_WAIT_POLICY ?= PASSIVE
REAL := TRITON_INTERPRET=0 NUMBA_ENABLE_CUDASIM=0

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-14s %s\n", $$1, $$2}' Makefile

$(READY): requirements.txt
	@[ -n "$(PYTHON)" ] || { echo "Python 3.11 or newer is needed and not on PATH: run make PYTHON=path ..." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit(f"Python 3.11 or newer is needed, given {sys.version}")'
	@echo "setting up .venv from requirements.txt (once):"
	@$(PYTHON) -m venv .venv
	@$(PY) -m pip install --disable-pip-version-check --no-input -r requirements.txt | sed -un 's/^Collecting /  /p; s/^Installing.*/  installing/p'
	@touch $@

reproduce: $(READY) ## every experiment's laptop form, every figure, the claim table; DATA=path trains on a log of your own
	@$(PY) -m experiments reproduce $(if $(DATA),--data "$(DATA)")

record: $(READY) ## every full grid into experiments/results, every figure into paper_figs/out (commit both)
	@$(PY) -m experiments record
	@$(PY) -m paper_figs

figs: $(READY) ## draw every figure from the committed records
	@$(PY) -m paper_figs

bench: $(READY) ## benchmark every op on the backends that run here, into runs/bench.json
	@mkdir -p runs
	@$(REAL) $(PY) -m pytest tests/bench -o python_files='bench_*.py' --benchmark-json=runs/bench.json

bench-peers: $(PEERS) $(READY) ## kernels/peers against torch and FBGEMM, minutes; OUT=experiments/results to commit the records
	@$(REAL) $(dir $(PEERS))bin/python -W ignore::DeprecationWarning -m experiments run kernels/peers --out $(OUT)
	@$(PY) -m paper_figs kernels/peers kernels/bandwidth --records $(OUT) --out $(if $(filter experiments/results,$(OUT)),paper_figs/out,$(OUT)/figures)

torchrec-plans: $(PEERS) ## plans, options and cost model of TorchRec's own planner, into experiments/embark/torchrec_plans
	@$(dir $(PEERS))bin/python -W ignore -m experiments.embark._torchrec

# FBGEMM for the CPU is built for one version of torch, and asks for nothing but numpy: it stays out of requirements.txt.
$(PEERS): requirements.txt
	@$(PYTHON) -m venv $(dir $@)
	@$(dir $@)bin/pip install --disable-pip-version-check --no-input -q -r <(grep -E '^(torch|numpy|numba|pandas|rich|tyro)[=><]' requirements.txt)
	@$(dir $@)bin/pip install --disable-pip-version-check --no-input -q --no-deps fbgemm-gpu-cpu==1.8.0 torchrec==1.8.0
	@$(dir $@)bin/pip install --disable-pip-version-check --no-input -q $(TORCHREC_NEEDS)
	@touch $@

bench-compare: $(READY) ## the benchmarks at BASE=<ref> and here, in turn; prints what got slower
	@$(REAL) $(PY) -m experiments.bench_compare $(or $(BASE),$(error bench-compare needs BASE=<git ref>))

gpu: ## the contract test, kernels/device and kernels/step on a CUDA device, with the interpreter PYTHON=path; installs nothing
	@$(REAL) $(PYTHON) -m experiments.gpu

test: lint ## lint, types, import contracts, tests; at most 6 minutes on 2 cores
	@$(PY) -m pytest -q -n $(JOBS) --dist worksteal -m "not slow and not gpu"

test-slow: $(READY) ## the long tests, bounded to 30 minutes; a pass is dated in experiments/results/test_slow.json
	@$(PY) -m experiments.slow_tests

lint: $(READY) ## ruff, pyright, import contracts
	@$(BIN)/ruff check -q
	@$(BIN)/ruff format -q --check
	@PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(BIN)/pyright
	@$(BIN)/lint-imports

clean: ## caches (records in runs/ and .venv stay)
	@rm -rf .pytest_cache .ruff_cache .hypothesis .benchmarks .import_linter_cache .triton
	@find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
