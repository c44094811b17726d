# The whole project through `make`: everything it needs is installed under build/.
PYTHON ?= python3.11
VENV := build/venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
EP := build/ep/libtilegraph_ep.so

.PHONY: setup ep demo test check bench conformance clean

setup: $(STAMP) ep

$(STAMP): pyproject.toml tools/setup_venv.sh
	PYTHON=$(PYTHON) tools/setup_venv.sh $(VENV)
	touch $@

ep: $(STAMP)
	PYTHON=$(BIN)/python tools/build_ep.sh

demo: setup
	$(BIN)/python -m models.demo

test: setup
	$(BIN)/python -m pytest -n 2 tests/unit tests/numeric tests/ep tests/conformance

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: setup
	$(BIN)/python -m models.bench

clean:
	rm -rf build
