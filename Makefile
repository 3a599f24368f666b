# make embed     set up without torch, then embed examples/sentences.txt
# make test      set up, then run the tests; ELMO_FAST_NO_NATIVE=1 tests the pure-Python package
# make test-all  set up, then run the long tests, which `make test` leaves out, and `make test-integrations`
# make test-integrations  set up, add the libraries that elmo-fast works with, then run the tests that need them
# make test-flair  the tests of flair, in an environment beside VENV that sees its packages
# make shown     bench and pictures: every table, chart, picture and output of README, docs and notebooks anew
# make bench     set up as for test-integrations, then measure what the tables and charts show of this kind of processor,
#                in an hour and a half on two idle cores, beside ALLENNLP=, BILM_TF=, SIMPLE_ELMO= (checkouts) and in
#                TF_PYTHON=, a Python with TensorFlow and tf_keras
# make pictures  set up as for test-integrations, then make the pictures of the docs and the outputs of the notebooks anew
# make docs      set up, then build the documentation site into build/site
# make lint      set up, then ruff, clang-format and mypy, in the versions that pyproject.toml pins
# make venv      set up for the tests only: an environment with torch, the build tools and this checkout, editable
# make native    build the native module again and say what came of it
# make clean     remove what was built; the environment stays
#
# Overrides, each as NAME=value:
#   PYTHON       the interpreter to make the environment from (3.11 or newer)
#   VENV         the environment; one that exists is used as it is
#   TORCH        what to install for the tests when the environment has no torch of at least 2.6. It goes in before
#                the extras, whose requirement it then meets. For a machine without a GPU give pip the place of the CPU
#                wheels (PIP_FIND_LINKS, PIP_INDEX_URL): a quarter of a gigabyte instead of several.
#   VENV_FLAGS   for `python -m venv`
#   PIP_FLAGS    for every `pip install`
#   PYTEST_FLAGS for pytest
#   SHARED       where `bench` finds the folders text and corpus
# Without a network, with an interpreter that has pip, the build tools and, for the tests, torch and pytest already:
#   make test VENV_FLAGS="--system-site-packages --without-pip" PIP_FLAGS=--no-deps
# (--without-pip, because the setuptools that a new environment brings would hide the newer one underneath.)

PYTHON ?= python3
VENV ?= .venv
TORCH ?= torch==2.13.0
VENV_FLAGS ?=
PIP_FLAGS ?=
PYTEST_FLAGS ?=
SHARED ?= ../shared

PY := $(VENV)/bin/python
PIP := $(PY) -m pip install -q $(PIP_FLAGS)
TOOLS := $(VENV)/.elmo-fast-tools
TESTED := $(VENV)/.elmo-fast-test
LINTERS := $(VENV)/.elmo-fast-linters
# Tests of code that works with optional libraries.
WITH_LIBRARIES := tests/integrations tests/scale tests/serve tests/compat/test_elmoformanylangs.py \
	tests/project/test_site.py tests/project/test_notebooks.py tests/vectors/test_layouts.py \
	tests/vectors/test_open_embeddings.py tests/files/test_helper_files.py
BENCH := $(PY) -m benchmarks.
RESULTS := benchmarks/results/cpu
PEERS := ALLENNLP BILM_TF SIMPLE_ELMO TF_PYTHON
SITE := $(VENV)/.elmo-fast-docs
LIBRARIES := $(VENV)/.elmo-fast-test-all
FLAIR := $(VENV)-flair
# Named after the checkout, by a sum, as names of targets have no spaces: two checkouts may share an environment, and the
# last one installed is the one it runs.
INSTALLED := $(VENV)/.elmo-fast-installed-$(firstword $(shell pwd -P | cksum))
SOURCES := setup.py CMakeLists.txt $(shell find csrc)
RECORD := elmo_fast/_build_info.py

HAS_PYTHON := import sys; sys.exit(sys.version_info < (3, 11) and "expected Python 3.11 or newer, got " + sys.version)
HAS_TORCH := from importlib.metadata import version; v = version("torch").split("."); assert (int(v[0]), int(v[1])) >= (2, 6)
SAY_NATIVE := import runpy; why = runpy.run_path("$(RECORD)")["NATIVE_SKIPPED"]; \
	print("native module:", why and "none, because " + why or "built"); why or \
	print("CUDA kernels:", (w := __import__("elmo_fast._native")._native.cuda_skipped) and "none, because " + w or "built")
# Writes a file into an environment's packages that adds those of this one.
SEES_PACKAGES := import sys, sysconfig; here = sysconfig.get_path("purelib"); \
	there = sysconfig.get_path("purelib", vars={"base": sys.argv[1]}); \
	open(there + "/packages.pth", "w").write(f"import site; site.addsitedir({here!r})\n")
# As many processes as cores, where pytest-xdist is; their waiting threads sleep, as spinning ones would hold a core.
PARALLEL := $(PY) -c 'import xdist; print("-n auto --maxprocesses 4 --dist worksteal")' 2>/dev/null || true
# Two beside pytest's: a library that ends its process, as Ray does when its cluster is lost, fails one test and not the
# run, and what waits for servers and browsers leaves its core to the other. A file's tests share a cluster or a site.
APART := $(PY) -c 'import xdist; print("-n 2 --dist loadfile")' 2>/dev/null || true

# Tests start hundreds of Pythons, which would each compile the sources anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: venv native embed test test-all test-integrations test-flair bench pictures shown docs lint clean FORCE

venv: $(TESTED)

$(PY):
	$(PYTHON) -c '$(HAS_PYTHON)'
	$(PYTHON) -m venv $(VENV_FLAGS) $(VENV)

$(TOOLS): pyproject.toml | $(PY)
	@echo "installing cmake, ninja and pybind11"
	@$(PIP) "setuptools>=77" "cmake>=3.18" ninja "pybind11>=2.12"
	touch $@

# The build tools of the environment itself, not fresh ones in isolation: a rebuild compiles only what changed.
$(INSTALLED): $(TOOLS) $(SOURCES) $(if $(wildcard $(RECORD)),,FORCE)
	@echo "compiling the native module: about a minute on two cores (ELMO_FAST_NO_NATIVE=1 leaves it out)"
	@begun=$$(date +%s); $(PIP) --no-build-isolation -e . && echo "compiled and installed in $$(($$(date +%s) - begun)) s"
	rm -f $(VENV)/.elmo-fast-installed*
	touch $@
	@$(PY) -c '$(SAY_NATIVE)'

# By its name the package is what is installed, and is not built again.
$(TESTED): pyproject.toml $(INSTALLED)
	@echo "installing what the tests need"
	$(PY) -c '$(HAS_TORCH)' 2>/dev/null || $(PIP) "$(TORCH)"
	$(PIP) "elmo-fast[test,remote]"
	touch $@

native: FORCE
	rm -f $(INSTALLED)
	$(MAKE) $(INSTALLED)

embed: $(INSTALLED)
	mkdir -p build
	rm -f build/embeddings.hdf5
	$(VENV)/bin/elmo-fast embed examples/sentences.txt build/embeddings.hdf5 --all
	@$(PY) examples/show_hdf5.py build/embeddings.hdf5

test: $(TESTED)
	OMP_WAIT_POLICY=passive $(PY) -m pytest -q $$($(PARALLEL)) $(PYTEST_FLAGS)

# ziglang compiles for macOS and Windows; tests that need it are skipped where it cannot be had.
test-all: $(TESTED)
	@$(PY) -c 'import ziglang' 2>/dev/null || $(PIP) ziglang || true
	OMP_WAIT_POLICY=passive $(PY) -m pytest -q -m long --durations=25 $$($(PARALLEL)) \
		$(addprefix --ignore=,$(WITH_LIBRARIES)) $(PYTEST_FLAGS)
	$(MAKE) test-integrations

test-integrations: $(LIBRARIES)
	$(PY) -m pytest -q -m long --durations=25 $$($(APART)) $(WITH_LIBRARIES) $(PYTEST_FLAGS)

$(LIBRARIES): pyproject.toml $(TESTED)
	$(PIP) "elmo-fast[test-all]"
	$(PIP) --no-deps elmoformanylangs
	touch $@

test-flair: $(FLAIR)/.elmo-fast-flair
	$(FLAIR)/bin/python -m pytest -q -m long tests/integrations/test_flair.py $(PYTEST_FLAGS)

# flair wants a transformers before 5, which the other libraries have left, and so has the datasets that fits it.
$(FLAIR)/.elmo-fast-flair: pyproject.toml $(TESTED)
	$(PY) -m venv $(VENV_FLAGS) --without-pip $(FLAIR)
	$(PY) -c '$(SEES_PACKAGES)' $(FLAIR)
	$(FLAIR)/bin/python -m pip install -q $(PIP_FLAGS) "elmo-fast[flair]" "datasets<5"
	touch $@

# The precisions of the original size run at every level that the processor offers. Tables of training (perplexities,
# states) are measured when a model is trained.
bench: $(LIBRARIES)
	$(foreach name,$(PEERS),$(if $($(name)),,$(error bench: expected $(name)=PATH, got none (see benchmarks/README.md))))
	$(PIP) onednn-devel-cpu-gomp onednn-cpu-gomp
	for model in small medium; do $(BENCH)bench_embed --model $$model --allennlp $(ALLENNLP) || exit 1; done
	$(BENCH)bench_embed --model original --allennlp $(ALLENNLP) --plain reference torch
	for model in bundled small; do $(BENCH)bench_embed --model $$model --latency || exit 1; done
	for model in original small bundled; do $(BENCH)bench_embed --model $$model --out $(RESULTS)/peers-$$model.json \
		--bilm-tf $(BILM_TF) --simple-elmo $(SIMPLE_ELMO) --tf-python $(TF_PYTHON) --precisions highest || exit 1; done
	for model in original small bundled; do $(BENCH)precisions --model $$model || exit 1; done
	for level in avx2 avx512 avx512-vnni; do export ELMO_FAST_CPU_ISA=$$level; \
		if [ $$($(PY) -c 'from elmo_fast import _native as n; print(n.cpu_isa())') = $$level ]; then \
		$(BENCH)precisions --model original || exit 1; fi; done
	$(BENCH)peers.layer --onednn --torch-lstm
	$(BENCH)bench_table
	$(BENCH)bench_io --models bundled small original --sentences 1024
	$(BENCH)bench_serve
	$(BENCH)start
	$(BENCH)bench_train --steps 200 --bilm-tf $(BILM_TF) --tf-python $(TF_PYTHON)
	mkdir -p build
	for task in pos mr; do $(BENCH)evaluate --task $$task --data $(SHARED)/text > build/$$task.txt || exit 1; done
	$(BENCH)tokenization $(SHARED)/text/*-dev.conllu $(SHARED)/text/*-test.conllu $(SHARED)/corpus/heldout.txt \
		> build/tokenizers.txt
	mv build/pos.txt build/mr.txt build/tokenizers.txt $(RESULTS)
	$(BENCH)report

# Tests compare what they show with today's model and code; `bench` makes the tables and charts of speed.
pictures: $(LIBRARIES)
	$(PY) docs/pictures/make.py
	$(PY) docs/pictures/notebooks.py

shown: bench pictures

docs: $(SITE)
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict -q

$(SITE): pyproject.toml $(INSTALLED)
	$(PIP) --no-build-isolation -e ".[docs]"
	touch $@

lint: $(LINTERS)
	$(VENV)/bin/ruff check .
	find csrc benchmarks/gpu -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' | xargs $(VENV)/bin/clang-format --dry-run -Werror
	$(VENV)/bin/mypy

$(LINTERS): pyproject.toml $(TESTED)
	$(PIP) --no-build-isolation -e ".[dev]"
	touch $@

clean:
	rm -rf build dist elmo_fast.egg-info elmo_fast/_native*.so $(RECORD)
