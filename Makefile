# `make test` is all there is to run: it sets up what it needs, then checks everything.

SHELL := /bin/sh
.SHELLFLAGS := -eu -c
.DELETE_ON_ERROR:
.NOTPARALLEL:
MAKEFLAGS += --no-builtin-rules

PYTHON := .venv/bin/python
# The tests' own engine: what is installed on the machine is neither used nor touched.
export WAYPOINT_ENGINE := $(CURDIR)/.cache/engine
# More arguments for pytest: make unit PYTEST_ARGS='-k shim'
PYTEST_ARGS ?=
# More arguments for the benchmark: make bench BENCH_ARGS=--quick
BENCH_ARGS ?=

# Real programs that the tests checkpoint and restore, as command:package.
PROGRAMS := curl:curl node:nodejs python3:python3 redis-server:redis-server \
	screen:screen sqlite3:sqlite3 tmux:tmux vim:vim
COMPILER := cc:gcc,libc6-dev
NATIVE := src/waypoint/native
# For how long each native reader is fed with mutated input.
FUZZ_SECONDS ?= 20

.PHONY: test
test: lint unit integration

.PHONY: lint
lint: .venv/.dev-stamp compiler
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m mypy
	for source in $(NATIVE)/*.c; do cc -O2 -fPIC -Wall -Wextra -Werror -c -o /dev/null "$$source"; done

.PHONY: unit
unit: .venv/.dev-stamp engine
	$(PYTHON) -m pytest --basetemp=.cache/unit tests/unit $(PYTEST_ARGS)

# The native programs with address and undefined-behaviour sanitizers, and mutated input for what reads input.
.PHONY: native-check
native-check: compiler
	rm -rf .cache/native
	mkdir -p .cache/native
	for source in keeper anchor relock inside track precopy flatten; do \
	    cc -g -O1 -Wall -Wextra -Werror -fsanitize=address,undefined -o ".cache/native/$$source" $(NATIVE)/$$source.c; \
	done
	[ "$$(.cache/native/track)" = ok ] || echo "this kernel cannot report which memory was written"
	for target in PLAN REQUEST START FLATTEN; do \
	    echo "$$target:"; \
	    cc -g -O1 -Wall -Wextra -Werror -Wno-unused-function -fsanitize=address,undefined -fno-sanitize-recover=all \
	        "-DTARGET_$$target" -o .cache/native/fuzz tests/native/fuzz.c; \
	    (cd .cache/native && ./fuzz $(FUZZ_SECONDS) $(FUZZ_SEED)); \
	done

.PHONY: integration
integration: .venv/.dev-stamp engine programs
	$(PYTHON) -m pytest --basetemp=.cache/integration tests/integration $(PYTEST_ARGS)

# The environment with the tools of requirements-dev.txt on top.
.venv/.dev-stamp: requirements.txt requirements-dev.txt waypoint
	./waypoint --bootstrap
	$(PYTHON) -m pip install --quiet --no-input --disable-pip-version-check -r requirements-dev.txt
	touch $@

# CRIU, the native programs and the packages they rely on; a moment when all is there already.
.PHONY: engine
engine: .venv/.dev-stamp
	@$(PYTHON) -c 'import pathlib, waypoint.machine.setup as p; p.set_up(pathlib.Path(".cache").resolve(), print)'

# Long campaigns: power cuts on a disk that forgets what was not synced. `make torture WAYPOINT_SEED=7` repeats one.
.PHONY: torture
torture: export WAYPOINT_POWER_CUTS ?= 40
torture: .venv/.dev-stamp engine
	$(PYTHON) -m pytest --basetemp=.cache/torture -rP tests/integration/test_power_cut.py $(PYTEST_ARGS)

# What it costs here; the results are in waypoint-bench/.
.PHONY: bench
bench: .venv/.dev-stamp engine
	$(PYTHON) -m waypoint bench --out waypoint-bench $(BENCH_ARGS)

# Whether it still costs what it did, compared with plain CRIU and others on the same machine.
.PHONY: bench-check
bench-check: .venv/.dev-stamp engine
	$(PYTHON) -m waypoint.bench.compare

# On a quiet machine: a full run, written into docs/performance.md, and the ratios to compare with.
.PHONY: bench-reference
bench-reference: .venv/.dev-stamp engine
	$(PYTHON) -m waypoint.bench.reference

.PHONY: programs
programs: wanted = $(PROGRAMS)
.PHONY: compiler
compiler: wanted = $(COMPILER)
programs compiler:
	@missing=; for pair in $(wanted); do \
	    command -v "$${pair%%:*}" >/dev/null 2>&1 || missing="$$missing $$(echo "$${pair#*:}" | tr , ' ')"; \
	done; \
	[ -z "$$missing" ] || { \
	    echo "installing for the tests:$$missing"; \
	    export DEBIAN_FRONTEND=noninteractive; \
	    apt-get -qq -o DPkg::Lock::Timeout=300 update; \
	    apt-get -qq -o DPkg::Lock::Timeout=300 install -y --no-install-recommends $$missing >/dev/null; \
	}

.PHONY: format
format: .venv/.dev-stamp
	$(PYTHON) -m ruff check --fix .
	$(PYTHON) -m ruff format .

.PHONY: clean
clean:
	rm -rf .venv .venv.lock .cache .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist src/*.egg-info waypoint-bench
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
