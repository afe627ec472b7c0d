# Everything runs from a virtual environment inside the checkout; `make help` lists the targets.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
# A file of tests stays in one process, which sets up once what they share and compiles it once; files
# come in the order that tests/conftest.py gives them, the longest first.
PYTEST := $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder --durations=10

.DEFAULT_GOAL := help
.PHONY: help install run test test-fast test-e2e lint format bench campaign-resume campaign-fuzz campaign-lookahead campaign-attacks campaign-federation campaign-dropouts benchmark-data pretrained docs build constraints clean

help:  ## List the targets
	@grep -E '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 20

install: $(INSTALLED)  ## Make the virtual environment and install plfl with what it was tested with

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "plfl needs Python 3.11 or newer: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

run: install  ## Train the forecaster on the bundled data and say where the report is
	$(BIN)/plfl run

test: test-fast test-e2e  ## Everything that CI runs

test-fast: install lint  ## Lint, types and the tests that start nothing
	$(PYTEST) -m "not e2e"

test-e2e: install  ## The tests that start real processes or take long
	$(PYTEST) -m e2e

lint: install  ## Format, lint and type checks
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: install  ## Format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: install  ## Speed beside peers, and memory, on this machine
	$(BIN)/plfl bench
	$(BIN)/python benchmarks/memory.py
	$(BIN)/python benchmarks/data.py

campaign-resume: install  ## Kill a run at 50 random moments and resume it
	$(BIN)/python benchmarks/campaign_resume.py

campaign-fuzz: install  ## Feed 200,000 broken files and tables to the reader and the doctor
	$(BIN)/python benchmarks/campaign_fuzz.py

campaign-lookahead: install  ## Alter readings that come later in 2,400 ways and look for any change
	$(BIN)/python benchmarks/campaign_lookahead.py

campaign-attacks: install  ## Attack a client, a server and the aggregates in every way we know, and print what it got
	$(BIN)/python benchmarks/campaign_attacks.py

campaign-federation: install  ## Kill processes of a real federation at 20 random moments
	$(BIN)/python benchmarks/campaign_federation.py

campaign-dropouts: install  ## Train 200 rounds with 30 % of the clients dropping out, beside nobody dropping out
	$(BIN)/python benchmarks/dropouts.py

benchmark-data: install  ## Simulate the bundled buildings anew with EnergyPlus (a quarter of an hour)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[simulate]'
	$(BIN)/python tools/benchmark/make.py --out src/plfl/data/benchmark

pretrained: install  ## Train the shared model that ships anew (minutes on a large GPU, long on a few cores)
	$(BIN)/python pretraining/train.py

docs: install  ## Write the pages that are made from the code
	$(BIN)/python tools/pages.py

build: install  ## Build the wheel
	$(BIN)/python -m build --wheel

constraints: install  ## Write down the versions that are installed now
	$(BIN)/python -m pip freeze --exclude-editable > constraints.txt

clean:  ## Remove what make has made
	rm -rf $(VENV) .cache dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
