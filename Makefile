PYTHON ?= python

.DEFAULT_GOAL := help

help: ## show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-16s %s\n", $$1, $$2}'

check: lint test ## style, types and the fast tests

lint: ## style and types
	$(PYTHON) -m ruff check .
	$(PYTHON) -m mypy

test: ## the fast tests (about two minutes on two cores)
	$(PYTHON) -m pytest -q -m "not slow" -n auto

test-slow: ## the tests that need the starter, real data, a browser or minutes
	$(PYTHON) -m pytest -q -m slow

fuzz: ## the fuzz tests of the readers with 10,000 examples each (about 20 minutes on two cores)
	DENSECAP_FUZZ=10000 $(PYTHON) -m pytest -q -n auto tests/collection/test_readers_fuzzed.py

kills: ## the kill tests with 100 kills a command (about 15 minutes on two cores)
	DENSECAP_KILLS=100 $(PYTHON) -m pytest -q -n auto tests/attacks/test_kills.py

BENCHMARKS := objectives gradient_cache evaluate_size inspect_size training_step captions_speed index_speed \
	growth memory_growth start profile_parts explain_speed gpu

bench: ## ratios of speed and memory, on a quiet machine (docs/performance.md)
	for name in $(BENCHMARKS); do $(PYTHON) benchmarks/$$name.py || exit 1; done

commands: ## write docs/commands.md from the help texts
	$(PYTHON) -m tools.command_page > docs/commands.md.new && mv docs/commands.md.new docs/commands.md

lowest-versions: ## find these versions anew, after a change of pyproject.toml (needs uv)
	uv pip compile -q --python-version 3.10 --resolution lowest-direct --no-annotate --custom-compile-command "make lowest-versions" --extra test pyproject.toml -o .ci/lowest.txt

# what old versions of other packages warn of each other is not ours to mend
OLD := -W ignore::DeprecationWarning -W ignore::PendingDeprecationWarning -W ignore::pytest.PytestUnraisableExceptionWarning

lowest: ## the fast tests with the lowest versions that pyproject.toml allows (6 GB, below build/; needs uv)
	uv venv -q --clear --python 3.10 build/lowest
	uv pip install -q --python build/lowest/bin/python -r .ci/lowest.txt
	uv pip install -q --python build/lowest/bin/python --no-deps -e .
	build/lowest/bin/python -m pytest -q -m "not slow" -n auto $(OLD)

serve: ## the page for INDEX, e.g. make serve INDEX=densecap-demo/index
	$(PYTHON) app.py $(INDEX)

.PHONY: help check lint test test-slow fuzz kills bench commands lowest-versions lowest serve
