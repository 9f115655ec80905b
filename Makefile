# `make help` lists the targets. Each does the set-up that it needs; what is done already is not done again.
#
#   make setup PYTHON=python3.12             another interpreter (3.10 or later)
#   make setup APT=no                        install no system packages, even where that would need no password
#   make setup DEEPNVME_WITHOUT=liburing     leave an engine out (liburing, libaio or both, with a comma)
#   make setup TORCH_INDEX=https://download.pytorch.org/whl/cpu
#                                            look for torch there too: its CPU build is a tenth of PyPI's CUDA build
#   make setup DEEPSPEED=no                  leave DeepSpeed out; its tests skip
#   make test ARGS="-k wait -x"              arguments for pytest; they also reach demo and bench

SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DIR ?= build/bench
export APT DEEPNVME_WITHOUT

CSRC := $(shell find csrc)
CXX_STYLED = $(shell find csrc tests/cpp tests/fuzz tests/native -name '*.h' -o -name '*.cpp')
TYPED := aio pinned_manager benchmarks examples tools tests/support/user_program.py
SPELLED := $(wildcard *.md *.py *.toml) Makefile _deepnvme-stubs aio benchmarks csrc docs examples pinned_manager tests tools

# The extension is looked at again, which costs a second, where its file is gone, an engine is to be left out, or one
# was left out last time: its library may have come since.
LOOK_AGAIN := $(if $(wildcard _deepnvme*.so),,FORCE)$(if $(DEEPNVME_WITHOUT),FORCE)
LOOK_AGAIN += $(shell grep -qs '^left out' build/objects-*/flags.txt && echo FORCE)

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-asan lint format bench bench-peers soak fuzz tidy coverage docs wheel clean FORCE
.NOTPARALLEL:
.DELETE_ON_ERROR:

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 13

BUILT := $(VENV)/.extension $(VENV)/.installed

setup: $(BUILT) $(if $(filter no,$(DEEPSPEED)),,$(VENV)/.deepspeed) ## system headers (apt, where it may), .venv, torch, the extension

demo: $(BUILT) ## train with the optimizer's moments on disk, and check them bit for bit
	@$(BIN)/python examples/train_with_nvme_states.py $(ARGS)

# Three workers on two cores: tests wait for drives and for children.
test: setup ## the whole test suite
	@$(BIN)/python -m pytest -n 3 --dist loadfile -m "not alone" $(ARGS) || [ $$? -eq 5 ]
	@$(BIN)/python -m pytest -m alone $(ARGS) || [ $$? -eq 5 ]

test-asan: setup ## the suite on the extension built under AddressSanitizer and UBSan
	@tools/test_asan.sh $(ARGS)

lint: setup ## ruff, mypy, clang-format and codespell, as checks
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --quiet --check .
	@$(BIN)/mypy --no-error-summary $(TYPED)
	@$(BIN)/clang-format --dry-run -Werror $(CXX_STYLED)
	@$(BIN)/codespell --skip "*.so,__pycache__,corpus,results" $(SPELLED)
	@echo "lint: clean"

format: setup ## rewrite Python and C++ in the project's style
	@$(BIN)/ruff check --quiet --select I --fix .
	@$(BIN)/ruff format --quiet .
	@$(BIN)/clang-format -i $(CXX_STYLED)

bench: setup ## measure beside fio in DIR=directory
	@tools/system_packages.sh tests
	@mkdir -p $(DIR)
	@$(BIN)/python -m benchmarks --dir $(DIR) $(ARGS)

bench-peers: setup ## install the peers into .venv-peers, and measure all on the same work in DIR=directory
	@tools/system_packages.sh peers
	@tools/bench_peers.sh $(VENV)
	@mkdir -p $(DIR)
	@TORCH_EXTENSIONS_DIR=$(CURDIR)/.venv-peers/operators .venv-peers/bin/python -m benchmarks --only peers --dir $(DIR) $(ARGS)

soak: setup ## random load with faults for MINUTES=10, every byte checked
	@$(BIN)/python -m tests.soak --minutes $(or $(MINUTES),10) $(ARGS)

fuzz: setup ## coverage-guided fuzzing for SECONDS=60, all targets together
	@tools/system_packages.sh fuzz
	@$(BIN)/python -m tests.fuzz --seconds $(or $(SECONDS),60) $(ARGS)

coverage: setup ## what the tests reach, in Python and in C++
	@tools/system_packages.sh tests
	@tools/coverage.sh $(ARGS)

tidy: setup ## clang-tidy on the C++, minutes
	@tools/tidy.sh

docs: setup ## write docs/api.md from the docstrings
	@$(BIN)/python tools/api_reference.py

wheel: setup ## the sdist and a manylinux wheel for this Python, in dist
	@tools/build_wheel.sh

clean: ## remove what was built; .venv stays (rm -r .venv starts over)
	rm -rf build dist *.egg-info _deepnvme*.so .mypy_cache .ruff_cache .pytest_cache .hypothesis
	rm -f $(VENV)/.extension

# ---- set-up, one stamp file a step; all are in .venv, so that a new one does every step ----

$(VENV)/.created:
	@tools/system_packages.sh build $(PYTHON)
	@echo "setup: $(VENV) with $$($(PYTHON) --version)"
	@rm -rf $(VENV)
	@$(PYTHON) -m venv $(VENV) 2>/dev/null || $(PYTHON) -m virtualenv --quiet $(VENV)
	@touch $@

$(VENV)/.requirements: constraints.txt $(VENV)/.created
	@echo "setup: torch and tools into $(VENV) (the first time takes minutes)"
ifeq ($(TORCH_INDEX)$(wildcard /dev/nvidiactl),)
	@echo "setup: no NVIDIA driver here; TORCH_INDEX=https://download.pytorch.org/whl/cpu saves gigabytes"
endif
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-input \
	    $(addprefix --extra-index-url ,$(TORCH_INDEX)) -r <(sed '/^# DeepSpeed/,$$d' constraints.txt)
	@touch $@

$(VENV)/.extension: setup.py $(CSRC) $(VENV)/.requirements $(LOOK_AGAIN)
	@echo "setup: the extension _deepnvme"
	@$(BIN)/python setup.py --quiet build_ext --inplace
	@touch $@

# After the extension, whose objects it finds done; edits to Python need no further step.
$(VENV)/.installed: pyproject.toml $(VENV)/.requirements | $(VENV)/.extension
	@echo "setup: the packages, editable"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-input --no-build-isolation \
	    -c constraints.txt -e .
	@touch $@

# Optional: DeepSpeed compiles nothing here, and what it needs stays out of .venv. The directory in it is an environment
# that finds all of .venv by a path file; its build needs torch, so it is not isolated.
$(VENV)/.deepspeed: constraints.txt $(VENV)/.requirements | $(VENV)/.installed
	@echo "setup: DeepSpeed into $(VENV)/deepspeed, for tests (make setup DEEPSPEED=no leaves it out)"
	@rm -rf $(VENV)/deepspeed
	@$(BIN)/python -m venv --without-pip $(VENV)/deepspeed
	@site='import sysconfig; print(sysconfig.get_path("purelib"))'; \
	    echo "import site; site.addsitedir('$$($(BIN)/python -c "$$site")')" \
	        >"$$($(VENV)/deepspeed/bin/python -c "$$site")/base.pth"
	@DS_BUILD_OPS=0 $(VENV)/deepspeed/bin/python -m pip install --quiet --disable-pip-version-check --no-input \
	    --no-build-isolation -c constraints.txt deepspeed && touch $@ \
	    || echo "setup: no DeepSpeed (pip could not install it): what needs it is skipped"
