# make setup | demo | test | test-all | bench      (Python >= 3.11, git and make are enough)
PYTHON ?= python3
export UV_COMPILE_BYTECODE = 1
export UV_FIND_LINKS ?= $(PIP_FIND_LINKS)
BIN = .venv/bin

.PHONY: setup demo lint test test-all bench constraints clean
.DEFAULT_GOAL = test

setup: .venv/ready

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt uv
	$(BIN)/uv pip install --quiet --python $(BIN)/python \
		--constraint constraints.txt --build-constraint constraints.txt --editable '.[all]' --group test
	touch $@

demo: setup
	BIN=$(BIN) bash examples/demo.sh demo

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	PYTHONPATH=. $(BIN)/lint-imports --no-cache

test: lint
	$(BIN)/pytest -n 2 -m "not slow"

test-all: lint .venv/bench
	$(BIN)/pytest -n 2

.venv/bench: .venv/ready  # large packages that make setup does without
	$(BIN)/uv pip install --quiet --python $(BIN)/python --constraint constraints.txt --group bench
	touch $@

bench: .venv/bench
	for script in benchmarks/bench_*.py; do $(BIN)/python $$script || exit 1; done

constraints: setup  # torch stays at the version of the wheel that the test machines hold
	echo 'torch==2.13.0' > .venv/torch.txt
	{ echo '# Every version, for every platform and Python 3.11 to 3.13; `make constraints` makes it anew.'; \
	  UV_FIND_LINKS= $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --all-extras --group bench \
	    --constraint .venv/torch.txt --no-header --no-annotate pyproject.toml; \
	  $(BIN)/uv --version | sed -E 's/uv ([0-9.]+).*/uv==\1/'; } > .venv/constraints.txt
	mv .venv/constraints.txt constraints.txt

clean:
	rm -rf .venv demo build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
