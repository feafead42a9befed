PYTHON ?= python

.DEFAULT_GOAL := help

help: ## show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

check: ## style, types and the fast tests
	$(PYTHON) -m ruff check .
	$(PYTHON) -m mypy
	$(PYTHON) -m pytest -q -m "not slow"

test: ## the fast tests (under two minutes on two cores)
	$(PYTHON) -m pytest -q -m "not slow"

test-slow: ## the tests that need the starter, real data, a browser or minutes
	$(PYTHON) -m pytest -q -m slow

bench: ## ratios of speed and memory
	for script in benchmarks/objectives.py benchmarks/gradient_cache.py benchmarks/evaluate_size.py benchmarks/inspect_size.py; do $(PYTHON) $$script || exit 1; done

serve: ## the page for INDEX, e.g. make serve INDEX=densecap-demo/index
	$(PYTHON) app.py $(INDEX)

.PHONY: help check test test-slow bench serve
