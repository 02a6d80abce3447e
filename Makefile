# Everything a developer runs. `make help` lists the targets.
#
# The targets that need Python make their own virtual environment in .venv, from pyproject.toml and constraints.txt;
# it is made again only when one of the two changes. Variables that can be set on the command line:
#   PYTHON    Python 3.11 or newer that makes the environment (default: the first one found)
#   VENV      where the environment stands (default: .venv)
#   PIP_ARGS  more arguments for pip; on Linux without a GPU,
#             PIP_ARGS="--extra-index-url https://download.pytorch.org/whl/cpu" gets the much smaller build of torch
#   WORKERS   processes that run the tests (default: 2)

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.complete
WORKERS ?= 2
PIP_ARGS ?=
NEW_ENOUGH := import sys; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c '$(NEW_ENOUGH)' >/dev/null 2>&1 && { echo $$p; break; }; done)

SANITIZED_CXX ?= g++
KERNEL_TESTS := tests/native/test_kernels.py tests/native/test_steps.py tests/native/test_threads.py \
	tests/native/test_addresses.py tests/native/test_gradients.py tests/sparsity/test_entmax_native.py \
	tests/sparsity/test_entmax_function.py tests/model/test_compiled_step.py tests/model/test_compiled_encoder.py \
	tests/model/test_packing.py tests/model/test_joined_caches.py tests/sparsity/test_topk_steps.py \
	tests/decoding/test_greedy_kernel.py tests/decoding/test_pool.py

# One thread a process: the test processes share the cores.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS)

.PHONY: help venv kernels demo wheel release plugin test test-all test-slow processors triton sanitize mutants lint check format bench gpu docs claims gallery site demo-corpus clean distclean

help:  ## List the targets
	@grep -E '^[a-z-]+:.*##' Makefile | sed -E 's/:[^#]*## /|/' | while IFS='|' read -r name text; do \
		printf '  make %-11s %s\n' "$$name" "$$text"; done

venv: $(STAMP) kernels  ## Make the virtual environment, if it is missing or stale, and the compiled kernels

$(STAMP): pyproject.toml constraints.txt
	@if [ -z "$(PYTHON)" ] || ! "$(PYTHON)" -c '$(NEW_ENOUGH)'; then \
		echo "sparsenmt needs Python 3.11 or newer: install one, or name one with PYTHON=..." >&2; exit 1; fi
	"$(PYTHON)" -m venv "$(VENV)"
	SPARSENMT_WHEEL_KERNELS=0 "$(BIN)/python" -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) \
		-c constraints.txt -e '.[dev]'
	@touch "$@"

# Shown here, as pip hides the build of an installation; nothing is done if they are up to date.
kernels: $(STAMP)  ## Build the compiled kernels of this processor, if they are missing or stale
	@"$(BIN)/python" -m sparsenmt.native.build || echo "continuing without compiled kernels" >&2

demo: venv  ## Prepare, train, decode and score on the built-in demo corpus
	@$(BIN)/sparsenmt demo

wheel: $(STAMP)  ## Build a wheel with compiled kernels into dist/
	SPARSENMT_WHEEL_KERNELS=1 "$(BIN)/python" -m pip wheel --quiet --disable-pip-version-check --no-deps \
		--wheel-dir dist .

# TRIAL=1: also where the changelog is not ready.
release: $(STAMP)  ## Build, check and try the files of a release on Python 3.11, 3.12 and 3.13; uploads nothing
	"$(BIN)/python" -m pip install --quiet --disable-pip-version-check -c constraints.txt auditwheel build twine
	"$(BIN)/python" -m tools.release $(if $(TRIAL),--trial)

# Far from the checkout, so that only what is installed can be imported.
plugin: $(STAMP)  ## Install a wheel and the template of a plugin into a fresh environment, and check the plugin there
	@folder="$$(mktemp -d)" && trap 'rm -rf "$$folder"' EXIT && set -e && \
	"$(BIN)/python" -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir "$$folder/dist" . && \
	cp -R examples/plugin "$$folder/plugin" && "$(BIN)/python" -m venv "$$folder/venv" && \
	"$$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) -c constraints.txt \
		"$$folder"/dist/*.whl "$$folder/plugin[test]" && cd "$$folder/plugin" && \
	"$$folder/venv/bin/sparsenmt" check-method sparsenmt_sink && \
	"$$folder/venv/bin/python" -m pytest -q -p no:cacheprovider

test: venv  ## Run the fast tests
	@$(PYTEST)

test-all: $(STAMP)  ## Run the fast tests and the thorough ones: further examples and norms, fuzz, faults
	@$(PYTEST) -m "not slow"

# Most of them need real corpora: SPARSENMT_DATA names the folder that has multi30k/. They train the models that they
# need; SPARSENMT_MODEL names a model directory to test instead.
test-slow: venv  ## Run the slow tests, with the corpora in SPARSENMT_DATA
	@$(PYTEST) -m slow --timeout 7200

processors: venv  ## Kernels of all instruction sets; AVX2 and NEON in an emulator (qemu), where installed
	@$(PYTEST) -m slow --timeout 1200 tests/native/test_compilers.py tests/native/test_emulated.py

# Triton stands beside the environment, whose build of PyTorch for CPUs has none. Older interpreters fail with NumPy 2.4.
triton: $(STAMP)  ## Test the kernels in Triton, which are for GPUs, in its interpreter on the CPU
	@"$(BIN)/python" -m pip install --quiet --disable-pip-version-check --no-deps --upgrade --target build/triton \
		"triton>=3.9,<4"
	@TRITON_INTERPRET=1 PYTHONPATH=build/triton $(PYTEST) tests/gpu/test_blockwise_entmax.py

# The sanitizers' libraries, those of the compiler that builds the kernels, must be loaded before all others.
SANITIZED := SPARSENMT_NATIVE_FLAGS="-g -O1 -fno-omit-frame-pointer -fno-sanitize-recover=all \
	-fsanitize=address,undefined,float-cast-overflow" CXX="$(SANITIZED_CXX)" \
	SPARSENMT_NATIVE_FOLDER="$(CURDIR)/build/sanitized" \
	ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1
sanitize: $(STAMP)  ## Run the kernels' tests under AddressSanitizer and UndefinedBehaviorSanitizer (GCC)
	@$(SANITIZED) $(BIN)/python -m sparsenmt.native.build
	@preload="$$(for name in libasan.so libubsan.so libstdc++.so.6; do $(SANITIZED_CXX) -print-file-name=$$name; done)"; \
		OMP_NUM_THREADS=1 $(SANITIZED) LD_PRELOAD="$$(echo $$preload)" $(BIN)/python -m pytest -s -n 0 --timeout 3600 -m "not slow" $(KERNEL_TESTS)

mutants: $(STAMP)  ## Damage formulas and kernels in many ways, one at a time; tests must fail for each
	@OMP_NUM_THREADS=1 $(BIN)/python -m tools.mutants

lint: $(STAMP)  ## Formatting, lint, types and import contracts
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy --strict
	$(BIN)/lint-imports

check: lint test  ## Everything that must hold before a commit

format: $(STAMP)  ## Format the code and apply the safe fixes of the linter
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

bench: venv  ## Time this project beside its peers (makes the peers' environments first)
	$(BIN)/python benchmarks/peers/environments.py
	$(BIN)/python benchmarks/decode_vs_ctranslate2.py
	$(BIN)/python benchmarks/wheel_kernels.py
	$(BIN)/python benchmarks/l0drop_decode.py
	$(BIN)/python benchmarks/l0drop_training.py
	$(BIN)/python benchmarks/train_vs_transformers.py
	$(BIN)/python benchmarks/language_model.py
	$(BIN)/python benchmarks/bf16_loss.py
	$(BIN)/python benchmarks/native_choice.py
	$(BIN)/python benchmarks/entmax_functions.py
	$(BIN)/python benchmarks/attention_training.py
	$(BIN)/python benchmarks/window_scaling.py
	$(BIN)/python benchmarks/global_attention.py
	$(BIN)/python benchmarks/tied_multi.py
	$(BIN)/python benchmarks/one_line.py
	$(BIN)/python benchmarks/import_time.py
	$(BIN)/python benchmarks/real_text.py
	$(BIN)/python benchmarks/students.py
	$(BIN)/python benchmarks/student_parity.py
	$(BIN)/python benchmarks/import_parity.py
	$(BIN)/python benchmarks/tokenizer_parity.py
	$(BIN)/python benchmarks/adapter_memory.py
	$(BIN)/python benchmarks/several_processes.py
	$(BIN)/python benchmarks/peak_memory.py
	$(BIN)/python benchmarks/scale.py
	$(BIN)/python benchmarks/long_runs.py
	$(BIN)/python benchmarks/significance.py

gpu: venv  ## Run everything that a GPU can show: tests, speed, memory, graphs; build/gpu.md
	@mkdir -p build
	@$(BIN)/python benchmarks/gpu.py --output build/gpu.md

docs: $(STAMP)  ## Write what is generated again: recipes.md, errors.md, architecture.svg in docs; README.md and schemas in recipes
	$(BIN)/python -m tools.recipe_docs --output docs/reference/recipes.md
	$(BIN)/python -m tools.error_docs --output docs/reference/errors.md
	$(BIN)/sparsenmt recipe-schema --output recipes/recipe.schema.json
	$(BIN)/sparsenmt recipe-schema --sweep --output recipes/sweeps/sweep.schema.json
	$(BIN)/python -m tools.recipe_index --output recipes/README.md
	$(BIN)/python -m tools.architecture_picture --output docs/architecture.svg

# CLAIM: number of a claim whose commands are run again, on a cut text and budget with SMALL=1, or with PLANNED=1 those that
# would decide it; without it the pages and pictures are written from the records.
claims: $(STAMP)  ## Write claims.md, findings.md and their pictures from the records; CLAIM=34 runs a claim again
	$(if $(CLAIM),$(BIN)/python -m tools.claims run $(CLAIM) $(if $(SMALL),--small) $(if $(PLANNED),--planned))
	$(BIN)/python -m tools.claims write

gallery: venv  ## Train the small models of the pictures in the docs, and draw the pictures again
	@$(BIN)/python -m tools.gallery

site: $(STAMP)  ## Build the docs as static pages with search, build/site; every link and anchor is checked
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet
	@echo "build/site: written; with search: $(BIN)/python -m http.server --directory build/site"

demo-corpus: $(STAMP)  ## Write the sentences of the demo corpus again, after a change of its grammar
	$(BIN)/python -m tools.demo_corpus --output sparsenmt/data/demo_sentences.txt.gz

clean:  ## Remove caches and built packages
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find sparsenmt tests tools benchmarks -name .venvs -prune -o -name __pycache__ -type d -exec rm -rf {} +

distclean: clean  ## Remove the virtual environments too
	rm -rf "$(VENV)" benchmarks/peers/.venvs
