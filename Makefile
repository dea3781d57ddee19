# Needs git, Python 3.11, g++ and make. `make demo` and `make test` set everything up in .venv first.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
PY := $(VENV)/bin/python
PYTEST_ARGS ?= -n auto --dist worksteal
DEPS := $(VENV)/.installed

.PHONY: venv build demo check test nightly docs figures fuzz zoo lint sanitize fuzz-core soak format clean

venv: $(DEPS)

$(PY):
	$(PYTHON) -m venv $(VENV)

# The build requirements come first: without build isolation the objects of `build/` stay reusable.
$(DEPS): pyproject.toml constraints.txt MANIFEST.in | $(PY)
	$(PY) -m pip install -q -c constraints.txt setuptools wheel pybind11
	$(PY) -m pip install -q -c constraints.txt --no-build-isolation -e '.[dev]'
	touch $@

# Compiles only the sources whose depfile names something newer than their object.
build: $(DEPS)
	@$(PY) setup.py -q build_ext --inplace

demo: build
	$(PY) -m baselines.demo

# A test that hangs fails, with the stacks of its threads; with several processes the others go on.
PYTEST := OMP_NUM_THREADS=1 $(PY) -m pytest -o faulthandler_exit_on_timeout=true --durations=30

# 11 minutes on two cores.
test: build
	$(PYTEST) -m "not nightly" $(PYTEST_ARGS)

# All other models, entry points, executors, architectures, experiments and examples.
nightly: build
	$(PYTEST) -m nightly $(PYTEST_ARGS)

# The rooms of what differs from BASE.
BASE ?= HEAD
check: build
	@rooms=$$(.ci/changed-rooms $(BASE)); [ -n "$$rooms" ] || { echo "nothing has changed since $(BASE)"; exit 0; }; \
	  OMP_NUM_THREADS=1 $(PY) -m pytest -q -m "not nightly" $(PYTEST_ARGS) $$rooms

# The pages of docs/ and the docstrings as a site, build/site/index.html; a link that leads nowhere is an error.
$(VENV)/.docs: $(DEPS)
	$(PY) -m pip install -q -c constraints.txt --no-build-isolation -e '.[docs]'
	touch $@

docs: build $(VENV)/.docs
	$(PY) -m sphinx -q -W --keep-going -c docs -d build/site/.doctrees . build/site
	cp build/site/README.html build/site/index.html

# Hours; `FUZZ_ARGS="rules --cases 2000 --seed 7"` for less.
FUZZ_ARGS ?= all
fuzz: build
	$(PY) -m tests.fuzz $(FUZZ_ARGS)

# All architectures of baselines/collection/ with the default options.
zoo: build
	$(PY) -m baselines.architectures all

# The tables of README.md and docs/ anew, from baselines/results/.
figures: build
	$(PY) -m baselines.figures

# A file is cut by subject, not by length: a long one gets a note, and no more.
LONG ?= 500
lint: build
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	$(VENV)/bin/lint-imports
	find csrc training/generate/csrc -name '*.h' -o -name '*.inc' -o -name '*.cpp' | xargs $(VENV)/bin/clang-format --dry-run -Werror
	@git ls-files '*.py' '*.cpp' '*.h' '*.inc' | xargs wc -l | awk '$$2 != "total" && $$1 > $(LONG) \
	  {print "note: " $$2 " has " $$1 " lines: is it one subject?"}'

# The C++ core and its kernels under AddressSanitizer, UndefinedBehaviorSanitizer and ThreadSanitizer.
sanitize: build
	.ci/sanitize address
	.ci/sanitize address-release
	.ci/sanitize thread
	.ci/sanitize kernels

# What reads text and models in the core, and its environment, by libFuzzer under sanitizers; needs clang.
fuzz-core:
	.ci/sanitize fuzz
	.ci/sanitize fuzz-thread

soak: build
	OMP_NUM_THREADS=1 $(PY) -m tests.soak

format: build
	$(PY) -m ruff check --fix-only .
	$(PY) -m ruff format .
	find csrc training/generate/csrc -name '*.h' -o -name '*.inc' -o -name '*.cpp' | xargs $(VENV)/bin/clang-format -i

clean:
	rm -rf build dist *.egg-info .import_linter_cache torchrlopt/*.so training/generate/*.so
