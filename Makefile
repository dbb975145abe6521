# To start:   make demo   ·   make test
# Everything is installed in .venv, and again whenever pyproject.toml changes.

.PHONY: help setup web demo test quick fuzz attack faults frozen check format clean
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet
ARGS ?=
QUICK := tests/engine tests/realtime tests/reference

help:
	@echo "make demo     set up, then start the server with the bundled model"
	@echo "make test     set up, then run the tests           (make test ARGS='-k resume')"
	@echo "make quick    run the unit tests: no process, Redis, browser or torch; under 30 s"
	@echo "make fuzz     send a million malformed frames to a server  (make fuzz ARGS='--frames 20000 --seed 7')"
	@echo "make attack   attack a server for half an hour, with other clients connected  (make attack ARGS='--minutes 5')"
	@echo "make faults   inject each fault often enough to prove recovery  (make faults ROW=F3 ARGS='--minutes 5')"
	@echo "make frozen   compare 10,000 simulated lives with the frozen ones  (make frozen ARGS='--jobs 4')"
	@echo "make check    check format, lint, types, imports and prose"
	@echo "make format   format the code and fix lint"
	@echo "make web      build the web page into the package (Node.js 20)"
	@echo "make setup    only set up $(VENV), with $(BIN)/continuo"
	@echo "make clean    remove everything that these targets create"

setup: $(VENV)/ready

web:
	@sh tools/build_web.sh

demo: setup
	@sh tools/build_web.sh || true
	@$(BIN)/continuo serve $(ARGS)

test: $(VENV)/ready-dev .venv-openai/ready
	@sh tools/setup_system.sh
	@sh tools/build_web.sh || true
	$(BIN)/python -m pytest $(ARGS)

quick: $(VENV)/ready-dev
	@$(BIN)/python -m pytest --quick --quiet $(QUICK) $(ARGS)

fuzz: $(VENV)/ready-dev
	$(BIN)/python -m tests.fuzz $(ARGS)

attack: $(VENV)/ready-dev
	$(BIN)/python -m tests.attack $(ARGS)

faults: $(VENV)/ready-dev
	@sh tools/setup_system.sh
	$(BIN)/python -m tests.faults $(ROW) $(ARGS)

frozen: $(VENV)/ready-dev
	$(BIN)/python -m tests.frozen --lives 10000 $(ARGS)

check: $(VENV)/ready-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/lint-imports
	$(BIN)/python tools/check_prose.py
	@! sh tools/build_web.sh || npm --prefix web run --silent check

format: $(VENV)/ready-dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf realtime/server/assets web/node_modules web/src/client/dist tests/clients/node/node_modules
	rm -rf .venv .venv-openai .pytest_cache .ruff_cache .hypothesis .import_linter_cache *.egg-info

$(BIN)/python:
	@sh tools/make_venv.sh $(VENV)

$(VENV)/ready: pyproject.toml | $(BIN)/python
	@echo "Installing Continuo into $(VENV). The first time takes a few minutes (PyTorch is large)."
	@$(PIP) -e .
	@touch $@

$(VENV)/ready-dev: pyproject.toml $(VENV)/ready
	@echo "Installing the requirements of tests and checks."
	@$(PIP) -e '.[test,dev]'
	@touch $@

# The openai SDK pins an old version of websockets, so it has an environment of its own.
.venv-openai/ready: tests/clients/requirements.txt
	@sh tools/make_venv.sh .venv-openai
	@.venv-openai/bin/python -m pip --disable-pip-version-check install --quiet -r $<
	@touch $@
