# To start:   make demo   ·   make test
# Everything is installed in .venv, and again whenever pyproject.toml changes.

.PHONY: help setup web demo test quick fuzz attack faults soak worlds upstream check format docs release clean
.PHONY: environments system check-format check-lint check-types check-imports check-prose check-web
.DEFAULT_GOAL := help

# Some containers set it. Then each start of Python would compile all of PyTorch again, for seconds.
unexport PYTHONDONTWRITEBYTECODE

VENV := .venv
BIN := $(VENV)/bin
ARGS ?=
# Of the slow tests, `make test` runs one in SHARE, drawn by the commit; a run that ARGS narrows runs all.
SHARE ?= $(if $(ARGS),1,8)
SEED ?= $(shell git rev-parse --short=12 HEAD 2>/dev/null || echo 0)
# One worker more than cores keeps all of them busy; with more, each test only takes longer.
JOBS ?= $(shell expr 1 + $$(nproc))
NODE_CLIENTS := tests/clients/node/node_modules
QUICK := tests/engine tests/realtime tests/reference

help:
	@echo "make demo     set up, then start the server with the bundled model  (make demo MODEL=Qwen/Qwen3-0.6B)"
	@echo "make test     set up, then run the tests, the slow ones in part    (make test ARGS='-k resume')"
	@echo "              all of them: make test SHARE=1"
	@echo "make quick    run the unit tests: no process, Redis, browser or torch; 40 s on two cores"
	@echo "make fuzz     send a million malformed frames to a server  (make fuzz ARGS='--frames 20000 --seed 7')"
	@echo "make attack   attack a server for half an hour, with other clients connected  (make attack ARGS='--minutes 5')"
	@echo "make faults   inject each fault often enough to prove recovery  (make faults ROW=F3 ARGS='--minutes 5')"
	@echo "make soak     run mixed clients for an hour; memory, files and keys stay flat   (make soak ARGS='--minutes 5')"
	@echo "make worlds   run random histories in crowded engines for an hour (make worlds ARGS='--minutes 5')"
	@echo "make upstream install llama-server and vLLM, and test an engine on them  (make upstream KIND=llama-server)"
	@echo "make check    check format, lint, types, imports, prose, docs and web/"
	@echo "make docs     build the site of the documentation into build/docs; a broken link is an error"
	@echo "make format   format the code and fix lint"
	@echo "make release  build a release into dist/, publishing nothing     (make release VERSION=0.2.0)"
	@echo "make web      build the web page into the package (Node.js 20)"
	@echo "make setup    only set up $(VENV), with $(BIN)/continuo, and the page"
	@echo "make clean    remove everything that these targets create"

setup: $(VENV)/ready

web:
	@sh tools/build_web.sh

# The server replaces the shell, so that its time until it is ready includes the set-up. Make runs a line
# that names its own variable MAKE even for `make --dry-run`, and would start the server.
SETUP = $(MAKE) --silent setup
demo:
	@$(SETUP) && { sh tools/build_web.sh 2>/dev/null || true; } && \
		exec $(BIN)/continuo serve --demo $(if $(MODEL),--model "$(MODEL)") $(ARGS)

test: environments
	@sh tools/build_web.sh || true
	@$(BIN)/python -m pytest --numprocesses $(JOBS) $(if $(filter-out 0,$(JOBS)),--dist loadfile) \
		--no-loadscope-reorder --max-worker-restart 0 --share $(SHARE) --share-seed $(SEED) $(ARGS)

# What the tests need. `make --jobs environments` sets it up side by side.
environments: $(VENV)/ready-dev .venv-openai/ready .venv-middleware/ready .venv-llama/ready $(NODE_CLIENTS)/ready system

system:
	@sh tools/setup_system.sh

quick: $(VENV)/ready-dev
	@$(BIN)/python -m pytest --quick --quiet --numprocesses $(JOBS) \
		$(if $(filter-out 0,$(JOBS)),--dist worksteal) $(QUICK) $(ARGS)

fuzz: $(VENV)/ready-dev
	$(BIN)/python -m tests.fuzz $(ARGS)

attack: $(VENV)/ready-dev
	$(BIN)/python -m tests.attack $(ARGS)

faults: $(VENV)/ready-dev
	@sh tools/setup_system.sh
	$(BIN)/python -m tests.faults $(ROW) $(ARGS)

upstream: environments
	@sh tools/build_web.sh || true
	$(BIN)/python -m tests.upstream $(KIND) $(ARGS)

soak: $(VENV)/ready-dev
	@sh tools/setup_system.sh
	$(BIN)/python -m tests.faults.soaking $(ARGS)

worlds: $(VENV)/ready-dev
	$(BIN)/python -m tests.worlds $(ARGS)

check: $(VENV)/ready-dev
	@$(MAKE) --no-print-directory --jobs --output-sync=target \
		check-format check-lint check-types check-imports check-prose docs check-web

check-format:
	$(BIN)/ruff format --check .

check-lint:
	$(BIN)/ruff check .

check-types:
	$(BIN)/pyright

check-imports:
	$(BIN)/lint-imports

check-prose:
	$(BIN)/python tools/check_prose.py

check-web:
	@! sh tools/build_web.sh || npm --prefix web run --silent check

docs: $(VENV)/ready-dev
	$(BIN)/python -m tools.write_configuration --check
	$(BIN)/python -m tools.write_benchmarks --check
	$(BIN)/python -m tools.write_models --check
	$(BIN)/python -m tools.write_tool_formats --check
	$(BIN)/python -m sphinx --quiet --fail-on-warning --keep-going docs build/docs
	@echo "The documentation is in build/docs/index.html."

format: $(VENV)/ready-dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

release: check
	@$(BIN)/python tools/release.py $(VERSION) $(if $(REPOSITORY),--repository $(REPOSITORY))

clean:
	rm -rf build/docs build/upstream dist realtime/server/assets web/node_modules web/src/client/dist $(NODE_CLIENTS)
	rm -rf .venv .venv-openai .venv-middleware .venv-llama .venv-vllm-* .pytest_cache .ruff_cache .hypothesis .import_linter_cache *.egg-info

$(BIN)/python:
	@echo "Setting up, which is needed once. Packages in pip's cache are not downloaded again."
	@sh tools/make_venv.sh $(VENV)

$(VENV)/ready: pyproject.toml | $(BIN)/python
	@$(BIN)/python tools/set_up.py --page torch continuo
	@touch $@

$(VENV)/ready-dev: pyproject.toml $(VENV)/ready
	@$(BIN)/python tools/set_up.py dev
	@touch $@

# The openai SDK pins an old version of websockets, so it has an environment of its own.
.venv-openai/ready: tests/clients/requirements.txt
	@sh tools/make_venv.sh .venv-openai
	@.venv-openai/bin/python tools/set_up.py $<
	@touch $@

# LiteLLM and LangChain, whose own classes of errors are tested, and Anthropic's SDK. Where a registry
# lacks one of their many packages, the tests of them are skipped.
.venv-middleware/ready: tests/clients/middleware-requirements.txt
	@{ sh tools/make_venv.sh .venv-middleware && .venv-middleware/bin/python tools/set_up.py $< && touch $@; } \
		|| echo "Not installed: $<. The tests that need it are skipped." >&2

# llama.cpp, the reference for GGUF files. Its library has no business in the process of torch.
.venv-llama/ready: tests/parity/requirements.txt
	@{ sh tools/make_venv.sh .venv-llama && .venv-llama/bin/python tools/set_up.py $< && touch $@; } \
		|| echo "Not installed: $<. The tests that need it are skipped." >&2

# The clients for Node.js: OpenAI's SDK, and the voice clients of other makers.
$(NODE_CLIENTS)/ready: tests/clients/node/package-lock.json
	@{ npm --prefix $(<D) ci --ignore-scripts --silent --no-progress && touch $@; } \
		|| echo "Not installed: $<. The tests that need it are skipped." >&2
