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
# How many processes run tests side by side, each with a home and a mount namespace of its own.
WORKERS ?= 3
# More arguments for the benchmark: make bench BENCH_ARGS=--quick
BENCH_ARGS ?=

# Real programs that the tests checkpoint and restore, or run beside Waypoint, as command:package.
PROGRAMS := curl:curl fish:fish node:nodejs python3:python3 redis-server:redis-server \
	screen:screen sqlite3:sqlite3 strace:strace tmux:tmux vim:vim \
	zsh:zsh
COMPILER := cc:gcc,libc6-dev
CONTAINERS := podman:podman,crun runc:runc
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
unit: .venv/.dev-stamp engine programs
	$(PYTHON) -m pytest --basetemp=.cache/u -n $(WORKERS) --dist loadfile tests/unit $(PYTEST_ARGS)

# What is written from the declarations in the source. Tests compare the pages with it.
.PHONY: docs
docs: .venv/.dev-stamp
	$(PYTHON) -m waypoint.cli.reference > docs/cli.md
	$(PYTHON) tests/generate_tree.py
	$(PYTHON) tests/generate_pictures.py
	$(PYTHON) -m waypoint man --to .cache/man

# The recordings that the pictures of README.md are drawn from, played again.
.PHONY: pictures
pictures: .venv/.dev-stamp engine
	unshare --mount --propagation private $(PYTHON) tests/generate_pictures.py --record

# The native programs with address and undefined-behaviour sanitizers, and mutated input for what reads input.
.PHONY: native-check
native-check: compiler
	rm -rf .cache/native
	mkdir -p .cache/native
	for source in keeper anchor start relock peers inside sqlite track precopy flatten pages; do \
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
	$(PYTHON) -m pytest --basetemp=.cache/i -n $(WORKERS) --dist loadfile tests/integration $(PYTEST_ARGS)

# The environment with the tools of requirements-dev.txt on top.
.venv/.dev-stamp: requirements.txt requirements-mcp.txt requirements-dev.txt waypoint
	./waypoint --bootstrap
	$(PYTHON) -m pip install --quiet --no-input --disable-pip-version-check -r requirements-dev.txt
	touch $@

# CRIU, the native programs and the packages they rely on; a moment when all is there already.
.PHONY: engine
engine: .venv/.dev-stamp
	@$(PYTHON) -c 'import pathlib, waypoint.machine.setup as p; p.set_up(pathlib.Path(".cache").resolve(), print)'

# Faults at every crash point, below root and on the real thing, and power cuts on a disk that forgets what was not
# synced; the table in docs/reliability.md is made of it. `make torture WAYPOINT_SEED=7` makes the same choices again.
.PHONY: torture
torture: .venv/.dev-stamp engine
	PYTHONPATH=src:. unshare --mount --propagation private $(PYTHON) -m tests.torture

# Malformed input for every reader and for the daemon's socket. `make fuzz WAYPOINT_SEED=7` repeats a campaign.
FUZZ_CASES ?= 100000
.PHONY: fuzz
fuzz: .venv/.dev-stamp
	$(PYTHON) -m tests.fuzz --write --cases $(FUZZ_CASES) $(if $(WAYPOINT_SEED),--seed $(WAYPOINT_SEED))

# Random trees of processes, compared before and after they come back. `make fidelity WAYPOINT_SEED=7` repeats a campaign.
FIDELITY_TREES ?= 5000
FIDELITY_ARGS ?=
.PHONY: fidelity
fidelity: .venv/.dev-stamp engine compiler
	unshare --mount $(PYTHON) -m tests.fingerprint.campaign --write --trees $(FIDELITY_TREES) $(FIDELITY_ARGS) \
	    $(if $(WAYPOINT_SEED),--seed $(WAYPOINT_SEED))

# Many clients against a model of a session, repetitions that must not leak, very large sessions.
LOAD_ARGS ?=
.PHONY: load
load: .venv/.dev-stamp engine programs
	$(PYTHON) -m tests.load --write $(LOAD_ARGS)

# Whether what is told is true: written and random stories, every statement against an oracle of its own. The table
# goes into docs/history.md. `make truth TRUTH_ARGS='--seed 17 --stories 1 --only random'` repeats one story.
TRUTH_ARGS ?= --write
.PHONY: truth
truth: .venv/.dev-stamp engine programs
	unshare --mount $(PYTHON) -m tests.truth.campaign $(TRUTH_ARGS)

# Searches that are killed again and again, and what forks save against starting anew; the tables in docs/explore.md.
EXPLORE_ARGS ?= --write
.PHONY: explore
explore: .venv/.dev-stamp engine
	PYTHONPATH=src:. unshare --mount --propagation private $(PYTHON) -m tests.explore_campaign $(EXPLORE_ARGS)

# Hostile boxes: what they try, and whether it is held; the table in docs/security.md. The boxes that stand side by side do so
# for a minute, or as long as WAYPOINT_REDTEAM_SECONDS says.
REDTEAM_ARGS ?= --write
.PHONY: redteam
redteam: .venv/.dev-stamp engine
	unshare --mount --propagation private $(PYTHON) -m tests.redteam $(REDTEAM_ARGS)

# Injected damage in points and in the database: all of it has to be found. `make damage WAYPOINT_SEED=7` repeats one.
.PHONY: damage
damage: export WAYPOINT_DAMAGES ?= 1400
damage: .venv/.dev-stamp engine
	$(PYTHON) -m pytest --basetemp=.cache/damage -rP tests/unit/test_damage.py tests/integration/test_damage.py $(PYTEST_ARGS)

# Adapters in the real frameworks, each in a virtual environment of its own: what their own suites say, and an agent that
# breaks its machine, goes back and succeeds. The counts are in docs/adapters.md.
ADAPTERS := $(filter-out %.sources,$(basename $(notdir $(wildcard tests/adapters/requirements/*.txt))))
# Harbor needs a newer Python than the rest: HARBOR_PYTHON=/path/to/python3.12 names one that is not on PATH.
ifneq ($(and $(filter adapters,$(MAKECMDGOALS)),$(filter harbor,$(ADAPTERS))),)
HARBOR_PYTHON ?= $(shell for python in python3.12 python3.13 python3.14; do \
    "$$python" -c "" 2>/dev/null && { echo "$$python"; break; }; done)
ifeq ($(HARBOR_PYTHON),)
$(info harbor is skipped: it needs Python 3.12 or newer (make adapters HARBOR_PYTHON=/path/to/python3.12))
override ADAPTERS := $(filter-out harbor,$(ADAPTERS))
endif
endif
.PHONY: adapters
adapters: .venv/.dev-stamp engine $(ADAPTERS:%=.cache/adapters/%/.stamp)
	for framework in $(ADAPTERS); do \
	    PYTHONPATH=src:. XDG_DATA_HOME="$(CURDIR)/.cache/adapters" XDG_CONFIG_HOME="$(CURDIR)/.cache/adapters" \
	    XDG_CACHE_HOME="$(CURDIR)/.cache/adapters/cache" \
	    ".cache/adapters/$$framework/bin/python" -m pytest \
	        --basetemp=.cache/a -p no:cacheprovider -W default -o asyncio_mode=auto \
	        -o asyncio_default_fixture_loop_scope=module -o asyncio_default_test_loop_scope=module \
	        "tests/adapters/test_$$framework.py" $(PYTEST_ARGS); \
	done

.cache/adapters/harbor/.stamp: private INTERPRETER = $(HARBOR_PYTHON)
# NAME.sources.txt names source packages of which the tests are run.
PIP_QUIETLY := --quiet --no-input --disable-pip-version-check
.cache/adapters/%/.stamp: requirements.txt tests/adapters/requirements/%.txt | .venv/.dev-stamp
	[ -x "$(@D)/bin/python" ] || $(or $(INTERPRETER),$(PYTHON)) -m venv "$(@D)"
	"$(@D)/bin/python" -m pip install $(PIP_QUIETLY) -r requirements.txt -r "tests/adapters/requirements/$*.txt"
	sources="tests/adapters/requirements/$*.sources.txt"; [ ! -e "$$sources" ] || "$(@D)/bin/python" -m pip download \
	    $(PIP_QUIETLY) --no-deps --no-binary :all: --dest "$(@D)/sources" -r "$$sources"
	touch $@

# The backend that needs podman, with the real one, and runc for machines whose control groups crun does not know.
.PHONY: podman
podman: .venv/.dev-stamp containers
	$(PYTHON) -m pytest --basetemp=.cache/p tests/podman $(PYTEST_ARGS)

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
.PHONY: containers
containers: wanted = $(CONTAINERS)
programs compiler containers:
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
