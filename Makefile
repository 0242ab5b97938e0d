# make run    the main job, 50 small sites: training alone, FedAvg, fine-tuning and SuPerFed-MM; the last also through Flower and Ray
# make test   the whole test suite            (one test: make test ARGS="-k superfed")
# make quick  the tests to run while you work: the exams of every method, without slow tests and Ray (two minutes)
# make test-deployment  the tests with a real SuperLink and SuperNodes (five minutes)
# make test-library  the tests of strategies and clients with the lowest versions that the library allows, in .venv-library (three minutes)
# make test-lowest  the test suite with the lowest versions that the application allows, in .venv-lowest
# make reproduce PAPER=superfed SCALE=small [DATA=DIR]  all tables and figures of a paper (experiments/); first shows how long it takes
# make claims  every quoted experiment, cut to seconds: names the claims that a change moves (ARGS=--write: takes the new numbers)
# make generate  updates everything that is generated from declarations: settings in pyproject.toml and docs/, exports, table of methods
# make app    makes the folder to publish on Flower Hub, build/app/fedapps, and says what to type
# make docs   builds the site into build/site/html; fails on broken links, missing references and stale generated tables
# make lint   ruff (lint and format), mypy and import-linter
# make clean  removes everything that these targets made, except results/
#
# All of them work in .venv, which is made at first use and updated when pyproject.toml changes.
# Another Python: make run PYTHON=python3.12

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: help run reproduce quick test test-deployment test-library test-lowest claims generate app docs lint clean

VENV := .venv
BIN := $(VENV)/bin
LOWEST := .venv-lowest
LIBRARY := .venv-library
DOCS := .venv-docs
# The first of these that is installed and new enough; otherwise python3, so that the message below names it.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; exit; }; done; echo python3)
# Quiet if something is installed already, because it then takes only seconds.
PIP = $(BIN)/python -m pip --disable-pip-version-check $(if $(wildcard $(VENV)/.installed*),--quiet)
RUN := $(BIN)/fedapps run experiments/default.toml device=cpu
ARGS ?=
PAPER ?=
SCALE ?= small
DATA ?=
# Two processes; the tests of a file share one. tests/conftest.py puts the longest files first.
TOGETHER := -n 2 --dist loadfile --no-loadscope-reorder

help:
	@sed -n 's/^# \{0,1\}//p;/^$$/q' Makefile

# The last method runs once more through Flower's Ray simulation. Its model and the scores of every client must be equal to the byte.
SAME := model.safetensors clients.csv curves.json
run: $(VENV)/.installed
	@echo "== 1/6  No federation: 50 small sites, every one trains alone (about 10 seconds)"
	@$(RUN) method=local --engine inline --out results/main/local --overwrite
	@echo "== 2/6  FedAvg: ten of the sites in each round (about 10 seconds)"
	@$(RUN) method=fedavg --engine inline --out results/main/fedavg --overwrite
	@echo "== 3/6  Fine-tuning: FedAvg's model, trained on by every client before it is used, by its validation samples (about 10 seconds)"
	@$(RUN) method=finetune --engine inline --out results/main/finetune --overwrite
	@echo "== 4/6  SuPerFed-MM: every client also has its own model (about 10 seconds)"
	@$(RUN) method=superfed-mm --engine inline --out results/main/superfed-mm --overwrite
	@echo "== 5/6  SuPerFed-MM once more, through Flower and Ray (about 30 seconds)"
	@$(RUN) method=superfed-mm --engine ray --out results/main/superfed-mm-ray --overwrite
	@for file in $(SAME); do cmp results/main/superfed-mm{,-ray}/$$file || { \
		echo "Flower and Ray gave other numbers than the inline engine." >&2; exit 1; }; done
	@echo "The same numbers through Flower and Ray: $(SAME) are equal."
	@echo "== 6/6  Comparison"
	@$(BIN)/fedapps compare results/main/{local,fedavg,finetune,superfed-mm} --out results/main/comparison

# Sweeps, or a script of contests.
STUDY = $(or $(patsubst %,$(BIN)/python %,$(wildcard experiments/$(PAPER)/contests.py)),$(BIN)/fedapps sweep experiments/$(PAPER))
# After an interruption, the same command continues; finished runs are not repeated.
reproduce: $(VENV)/.installed
	@test -n "$(PAPER)" -a -d "experiments/$(PAPER)" || { \
		echo "PAPER=$(PAPER): choose one of $(patsubst experiments/%/,%,$(wildcard experiments/*/))" >&2; exit 2; }
	@$(STUDY) --scale $(SCALE) $(if $(DATA),--data $(DATA)) \
		--out results/$(PAPER)-$(SCALE) $(ARGS)

test: $(VENV)/.installed-dev
	@$(BIN)/python -m pytest $(TOGETHER) $(ARGS)

quick: $(VENV)/.installed-dev
	@$(BIN)/python -m pytest -m "not slow and not ray and not deployment" $(TOGETHER) $(ARGS)

test-deployment: $(VENV)/.installed-dev
	@$(BIN)/python -m pytest -m deployment $(TOGETHER) $(ARGS)

# uv, which Flower installs, resolves the versions. Linters, and extras that most tests do not need, have no lowest version here.
test-library: $(LIBRARY)/.installed
	@OMP_NUM_THREADS=1 $(LIBRARY)/bin/python -m pytest -m "not slow and not ray" $(TOGETHER) tests/strategies tests/clients $(ARGS)

test-lowest: $(LOWEST)/.installed
	@OMP_NUM_THREADS=1 $(LOWEST)/bin/python -m pytest $(TOGETHER) $(ARGS)

claims: $(VENV)/.installed
	@$(BIN)/python -m tools.fingerprints $(ARGS)

generate: $(VENV)/.installed
	@$(BIN)/python -m tools.generate

app: $(VENV)/.installed
	@$(BIN)/python -m tools.hub_app build/app

# The tools of the site have their own environment, so that they do not affect the versions used by tests and runs.
docs: $(VENV)/.installed $(DOCS)/.installed
	@$(BIN)/python -m tools.generate --check
	@$(DOCS)/bin/python docs/theme/prepare.py build/site
	@$(DOCS)/bin/zensical build --strict --config-file build/site/site.yml
	@echo "The site is in build/site/html/index.html"

lint: $(VENV)/.installed-dev
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache

clean:
	rm -rf $(VENV) $(LOWEST) $(LIBRARY) $(DOCS) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
	find algorithms strategies clients fedapps tests benchmarks -name __pycache__ -prune -exec rm -rf {} +

# --- the environment -------------------------------------------------------------------------------------------------

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "Python 3.11 or newer is needed, but $(PYTHON) is $$($(PYTHON) --version 2>&1 | tail -1):" \
			"install one and name it, for example: make run PYTHON=python3.12" >&2; exit 2; }
	@echo "== Making $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
		echo "$(PYTHON) cannot make virtual environments: on Debian and Ubuntu, apt install python3-venv" >&2; exit 2; }

# A stamp that is newer than pyproject.toml means that the environment matches it.
$(VENV)/.installed: pyproject.toml | $(BIN)/python
	@echo "== Installing fedapps with Flower and PyTorch into $(VENV) (once; some gigabytes, a few minutes)"
	@$(PIP) install --editable '.[app]'
	@touch $@

$(VENV)/.installed-dev: pyproject.toml | $(BIN)/python
	@echo "== Installing fedapps and its development tools into $(VENV) (once; some gigabytes if PyTorch is not there yet)"
	@$(PIP) install --editable '.[app,dev]'
	@touch $(VENV)/.installed $@

$(BIN)/uv: | $(BIN)/python
	@$(PIP) install --quiet uv

$(LOWEST)/.installed: pyproject.toml | $(BIN)/uv
	@echo "== Installing the lowest versions that fedapps allows into $(LOWEST) (some gigabytes)"
	@$(BIN)/uv venv --quiet --clear --python $(BIN)/python $(LOWEST)
	@$(BIN)/uv pip install --quiet --python $(LOWEST)/bin/python --resolution lowest-direct --editable '.[app,test]'
	@touch $@

# Without the extra `app`, which needs a newer Flower. The tests compare with scikit-learn, and some run on a table, which Arrow holds.
$(LIBRARY)/.installed: pyproject.toml | $(BIN)/uv
	@echo "== Installing the lowest versions that the library allows into $(LIBRARY) (some gigabytes)"
	@$(BIN)/uv venv --quiet --clear --python $(BIN)/python $(LIBRARY)
	@$(BIN)/uv pip install --quiet --python $(LIBRARY)/bin/python --resolution lowest-direct --editable '.[torch,solvers,test]' 'scikit-learn>=1.6' 'pyarrow>=15,<27'
	@touch $@

$(DOCS)/.installed: pyproject.toml | $(VENV)/.installed
	@echo "== Installing the tools of the documentation into $(DOCS)"
	@$(BIN)/uv venv --quiet --clear --python $(BIN)/python $(DOCS)
	@$(BIN)/uv pip install --quiet --python $(DOCS)/bin/python --requirements pyproject.toml --extra docs
	@touch $@
