# The words of the README. `make` alone lists them.

CARGO ?= cargo
PYTHON ?= python3
ACCEPTANCE := services/server/tests/acceptance
PACKAGE := clients/python

.PHONY: help demo test test-rust test-acceptance test-python wheel lint deploy-check load bench clean

help:
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

demo: ## stream real Parquet to a small trainer and show what it took
	$(CARGO) run --release -- demo

test: test-rust test-acceptance test-python ## all tests; installs what they need

test-rust: ## the tests of the crates
	$(CARGO) test --release --workspace --tests

test-acceptance: ## stock pyarrow against the release binary
	$(CARGO) build --release --workspace
	$(PYTHON) $(ACCEPTANCE)/prepare.py
	target/acceptance/venv/bin/python -m pytest $(ACCEPTANCE)

test-python: wheel ## the Python package out of its wheel, in an environment of its own
	target/python/venv/bin/python -m pytest $(PACKAGE)/tests
	@if [ -e target/python/torch.missing ]; then echo "skipped: tests with PyTorch: $$(cat target/python/torch.missing)"; \
	else target/python/torch/bin/python -m pytest $(PACKAGE)/tests; fi

wheel: ## the Python package, with the server in it, under target/python/wheels
	$(CARGO) build --release --workspace
	$(PYTHON) $(PACKAGE)/prepare.py

lint: ## formatting, clippy, documentation, dependencies
	$(CARGO) fmt --all --check
	$(CARGO) clippy --release --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --release --workspace --no-deps
	.ci/deny

deploy-check: ## what deploy/ holds: rules, dashboard, Dockerfile, compose file, chart
	.ci/deploy

load: ## Forebay beside what people use today, and cold epochs
	$(CARGO) build --release --workspace
	target/release/forebay-load peers --scenario tensor
	target/release/forebay-load peers --scenario clicks
	target/release/forebay-load cold --scenario clicks

bench: ## the benchmarks of docs/benchmarks.md
	$(CARGO) bench --workspace

clean: ## remove everything that was built or downloaded
	$(CARGO) clean
