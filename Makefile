# Everything a person or CI does with this repository. `make help` lists it.
#
# Needs: make, and Python 3.11 or newer with its venv module. All else is set up into .venv from
# constraints/*.txt, where every file is pinned by its hash. Set-up runs again only when the
# constraints, pyproject.toml or the version change.

PYTHON ?= python3
JOBS   ?= 2
ARGS   ?=

VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check --no-input
RUN    := $(VENV)/.setup-run
DEV    := $(VENV)/.setup-dev
BVENV  := .venv-bench
BENCH  := $(BVENV)/.setup
SELF   := pyproject.toml harnessd/__init__.py

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: help demo test check lint docs bench crash-sweep crash-points escapes seeded-bugs payments trees power-loss io-faults \
  damage pauses full-disk recovery postgres-chaos constraints
.PHONY: install-run install-dev clean

help: ## print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

demo: $(RUN) ## set up, then show the defences at work: no key, no network
	@$(BIN)/harnessd demo $(ARGS)

test: $(DEV) ## set up, then run every test (ARGS="-k word", JOBS=4)
	@$(BIN)/python -m pytest -n $(JOBS) $(ARGS)

check: lint test ## everything CI checks: lint, format, types, floors, tests

lint: $(DEV) ## ruff, its formatter, mypy strict, import floors
	@failed=0; for step in "ruff check" "ruff format --check" "mypy" "lint-imports"; do \
	  echo "$$step"; $(BIN)/$$step || failed=1; done; exit $$failed

docs: $(DEV) ## write the generated parts of docs/ again
	@$(BIN)/python docs/generate.py

bench: $(BENCH) ## the performance gates, each beside its control, in one run (ARGS="steps queue")
	@$(BVENV)/bin/python -m benchmarks.run $(ARGS)

crash-sweep: $(DEV) ## kill -9 the daemon at seeded moments, 10,000 times, and compare three books (ARGS="--runs 300")
	@$(BIN)/python benchmarks/proofs/kills.py --runs 10000 $(ARGS)

crash-points: $(DEV) ## kill -9 the daemon at each pass of each crash point (ARGS="--seeds 20")
	@$(BIN)/python benchmarks/proofs/points.py $(ARGS)

escapes: $(DEV) ## tools that do not want to end, 100 times each end: nothing of them lives 10 s later
	@$(BIN)/python benchmarks/proofs/escapes.py --times 100 $(ARGS)

seeded-bugs: $(DEV) ## put 30 bugs into copies of harnessd, one at a time: the tests must catch them
	@$(BIN)/python benchmarks/proofs/bugs.py $(ARGS)

simulate: $(DEV) ## 2,000 seeds on virtual time: faults, kills and persons, then healing (ARGS="--minutes 30 --seeds 100000")
	@$(BIN)/python -m tests.simulation $(ARGS)

payments: $(DEV) ## 1,000 payments whose answers are lost, under daemons killed in the middle: none is made twice
	@$(BIN)/python benchmarks/payments.py --runs 1000 $(ARGS)

rollback-sweep: $(DEV) ## kill -9 the daemon at seeded moments of rollbacks, 200 times: files and pointer match
	@$(BIN)/python benchmarks/rollback_sweep.py --runs 200 $(ARGS)

trees: $(DEV) ## 20,000 random workspaces taken back byte for byte, and hundreds of kills in checkpoint and restore
	@HARNESSD_TREES=20000 HARNESSD_KILLS=400 $(BIN)/python -m pytest -n $(JOBS) --timeout=0 \
	  tests/workspace/test_random_trees.py tests/workspace/test_kill.py $(ARGS)
	@HARNESSD_KILLS=400 $(BIN)/python -m pytest -n 0 -s --timeout=0 tests/workspace/test_kill_random_trees.py $(ARGS)

power-loss: $(DEV) ## 100,000 disks as power cuts may leave them, each opened again (needs strace; ARGS="--images 10000")
	@$(BIN)/python benchmarks/disks/power.py $(ARGS)

io-faults: $(DEV) ## each operation on the disk fails once, then 20,000 pairs (needs a C compiler; ARGS="--pairs 200")
	@$(BIN)/python benchmarks/disks/faults.py $(ARGS)

damage: $(DEV) ## 20,000 damaged logs and pages of a crashed store: what was dropped is told (ARGS="--mutations 2000")
	@$(BIN)/python benchmarks/disks/damage.py $(ARGS)

pauses: $(DEV) ## an owner stopped in its writes, another takes over, the first wakes up, 2,000 times (ARGS="--times 50")
	@$(BIN)/python benchmarks/disks/pauses.py $(ARGS)

full-disk: $(DEV) ## 24 times a disk fills up to its last byte under a daemon and is freed again (needs root, to mount one)
	@HARNESSD_CYCLES=24 $(BIN)/python -m pytest -q -s --timeout=0 tests/acceptance/test_full_disk_again.py $(ARGS)

recovery: $(DEV) ## a daemon's start after kill -9 with 10,000 tasks and 1,000,000 events, beside an empty store's
	@$(BIN)/python benchmarks/disks/recovery.py $(ARGS)

postgres-chaos: $(DEV) ## 5,000 tasks, two daemons killed and paused, their PostgreSQL server stopped again and again (ARGS="--tasks 200 --pace 0.25")
	@$(BIN)/python benchmarks/proofs/several.py $(ARGS)

constraints: ## pin the newest fitting versions again, by hash (UPGRADE=1 lifts pins that still fit)
	@set -e; scratch=$$(mktemp -d); trap 'rm -rf "$$scratch"' EXIT; \
	$(PYTHON) -m venv "$$scratch" && "$$scratch/bin/python" -m pip install -qq --disable-pip-version-check uv; \
	lock() { "$$scratch/bin/uv" pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	  --no-header --no-annotate --no-emit-index-url --no-emit-find-links $(if $(UPGRADE),--upgrade) "$$@"; }; \
	lock pyproject.toml constraints/build.in -o constraints/run.txt; \
	lock pyproject.toml constraints/build.in -c constraints/run.txt \
	  --extra dev --extra postgres --extra prices --extra otel --extra notify -o constraints/dev.txt; \
	lock pyproject.toml constraints/build.in -c constraints/dev.txt --extra dev --extra bench -o constraints/bench.txt

clean: ## remove what set-up and tools made
	@rm -rf $(VENV) $(BVENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

# What a runner of the daemon needs, no more; the dev set is a superset of it with the same pins.
install-run: $(RUN)
install-dev: $(DEV)

# $(call venv,FOLDER): a virtual environment that works, or a sentence that says what is missing.
define venv
	@command -v $(PYTHON) >/dev/null || { \
	  echo "There is no $(PYTHON) here. Install Python 3.11 or newer, or name one: make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "$(PYTHON) is $$($(PYTHON) -V 2>&1); harnessd needs 3.11 or newer. Name one: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "$(PYTHON) cannot make virtual environments: its venv module is missing. On Debian: apt-get install python3-venv" >&2; exit 1; }
	@$(1)/bin/python -m pip --version >/dev/null 2>&1 || { echo "setting up $(1)"; $(PYTHON) -m venv --clear $(1); }
endef

$(RUN): constraints/run.txt $(SELF)
	$(call venv,$(VENV))
	@$(PIP) install -qq --require-hashes -r constraints/run.txt
	@$(PIP) install -qq --no-deps --no-build-isolation --editable .
	@touch $@

$(DEV): constraints/dev.txt constraints/run.txt $(SELF)
	$(call venv,$(VENV))
	@$(PIP) install -qq --require-hashes -r constraints/dev.txt
	@$(PIP) install -qq --no-deps --no-build-isolation --editable .
	@touch $(RUN) $@

$(BENCH): constraints/bench.txt $(SELF)
	$(call venv,$(BVENV))
	@$(BVENV)/bin/python -m pip --disable-pip-version-check --no-input install -qq --require-hashes -r constraints/bench.txt
	@$(BVENV)/bin/python -m pip --disable-pip-version-check --no-input install -qq --no-deps --no-build-isolation --editable .
	@touch $@
