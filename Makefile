PYTHON ?= python

.DEFAULT_GOAL := help

help: ## show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

check: lint test ## style, types and the fast tests

lint: ## style and types
	$(PYTHON) -m ruff check .
	$(PYTHON) -m mypy

test: ## the fast tests (about two minutes on two cores)
	$(PYTHON) -m pytest -q -m "not slow" -n auto

test-slow: ## the tests that need the starter, real data, a browser or minutes
	$(PYTHON) -m pytest -q -m slow

bench: ## ratios of speed and memory
	for script in benchmarks/objectives.py benchmarks/gradient_cache.py benchmarks/evaluate_size.py benchmarks/inspect_size.py; do $(PYTHON) $$script || exit 1; done

serve: ## the page for INDEX, e.g. make serve INDEX=densecap-demo/index
	$(PYTHON) app.py $(INDEX)

.PHONY: help check lint test test-slow bench serve
