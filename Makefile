# Everything runs in virtual environments made here. A second run of any target installs nothing.
#
#   make demo             train, calibrate and draw: the main example, pictures in demo/
#   make test             lint, check types, run all tests
#   make docs             the documentation with its executed gallery, in docs/_build/html
#   make bench NAME=ece   one benchmark (or NAME=all), one JSON line per measurement
#   make format           format the code and apply the linter's safe repairs
#   make clean            remove what was built, keep the environments
#   make distclean        remove the environments as well

PYTHON ?= python3
WORKERS ?= 2
NAME ?= all

VENV := .venv
BIN := $(VENV)/bin
BENCH := .venv-bench
BENCH_BIN := $(BENCH)/bin
INSTALL := -m pip --disable-pip-version-check install --quiet --constraint constraints.txt
# The torch of each test worker keeps to one core; the workers are the parallelism.
ONE_THREAD := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1

.NOTPARALLEL:
.DELETE_ON_ERROR:
.PHONY: help demo test lint types unit docs bench format clean distclean \
	install-demo install-test install-docs install-bench

help:
	@sed -n 's/^#   //p' $(firstword $(MAKEFILE_LIST))

# Environments. A stamp is newer than what it was installed from, or the install runs again.

$(VENV)/.created $(BENCH)/.created:
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed: make PYTHON=python3.11 ..." if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(@D)
	@touch $@

$(VENV)/.installed-demo: pyproject.toml constraints.txt $(VENV)/.created
	$(BIN)/python $(INSTALL) --editable '.[examples]'
	@touch $@

$(VENV)/.installed-test: pyproject.toml constraints.txt $(VENV)/.created
	$(BIN)/python $(INSTALL) --editable '.[examples,test]'
	@touch $@

$(VENV)/.installed-docs: pyproject.toml constraints.txt $(VENV)/.created
	$(BIN)/python $(INSTALL) --editable '.[docs,examples]'
	@touch $@

$(BENCH)/.installed: pyproject.toml constraints.txt benchmarks/requirements.txt benchmarks/requirements-no-deps.txt \
		$(BENCH)/.created
	$(BENCH_BIN)/python $(INSTALL) --requirement benchmarks/requirements.txt --editable .
	$(BENCH_BIN)/python $(INSTALL) --no-deps --requirement benchmarks/requirements-no-deps.txt
	@touch $@

install-demo: $(VENV)/.installed-demo
install-test: $(VENV)/.installed-test
install-docs: $(VENV)/.installed-docs
install-bench: $(BENCH)/.installed

# Work.

demo: install-demo
	@mkdir -p demo
	MPLBACKEND=agg $(BIN)/python examples/digits_reliability.py demo

test: lint types unit

lint: install-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: install-test
	$(BIN)/mypy

unit: install-test
	$(ONE_THREAD) MPLBACKEND=agg $(BIN)/python -m pytest -n $(WORKERS)

docs: install-docs
	MPLBACKEND=agg $(BIN)/python -m sphinx -W --keep-going -b html docs docs/_build/html

bench: install-bench
	@$(BENCH_BIN)/python -m benchmarks $(NAME)

format: install-test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf build dist demo examples/demo docs/_build docs/gallery docs/api docs/sg_execution_times.rst
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage
	find src tests examples benchmarks docs -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean
	rm -rf $(VENV) $(BENCH) src/credibly.egg-info
