# The front door. `make demo` and `make test` work on a fresh clone; both build .venv first if it is missing.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: help demo test lint types slow bench docs pictures reference dist format clean

help:  ## list what can be made
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*##/\t/' | expand -t 10

$(VENV)/runtime: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "securesgd needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>&1). Try: make PYTHON=python3.11 $(MAKECMDGOALS)"; exit 2; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV) (about a minute the first time)"
	$(PIP) --editable .
	@touch $@

$(VENV)/dev: $(VENV)/runtime
	$(PIP) --editable '.[dev]'
	@touch $@

demo: $(VENV)/runtime  ## run the product on embedded data and write runs/demo
	$(BIN)/securesgd demo

# Bytecode is kept even where the environment says not to: the tests start dozens of processes that load the package.
test: export PYTHONDONTWRITEBYTECODE =
test: lint types $(VENV)/dev  ## lint, types and the fast tests
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

lint: $(VENV)/dev  ## ruff: format check and lint
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(VENV)/dev  ## mypy --strict on the package
	$(BIN)/mypy

slow: $(VENV)/dev  ## the long tests
	$(BIN)/python -m pytest -m slow

bench: $(VENV)/dev  ## every benchmark; JSON rows on standard output
	@for file in benchmarks/*.py; do $(BIN)/python $$file || exit 1; done

docs: $(VENV)/dev  ## the site in site/, and the pages of docs/reference that are made from the code
	$(BIN)/python docs/make
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo "site/index.html is built; with the search: $(BIN)/python -m http.server --directory site"

pictures: $(VENV)/runtime  ## the pictures of docs/concepts, drawn by the package
	$(BIN)/python docs/make/pictures.py

reference: $(VENV)/dev  ## rebuild the reference runs in runs/reference and compare their digests
	$(BIN)/python release/reference_runs.py

dist: $(VENV)/dev  ## the package as wheel and sdist in dist/, with the bill of materials of constraints.txt
	$(BIN)/python release/bill_of_materials.py
	$(BIN)/python -m build --outdir dist

format: $(VENV)/dev  ## let ruff rewrite the files
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:  ## remove the environment and caches; runs/ and results/ stay
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache
