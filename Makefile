# The words of the README. `make` alone lists them.

CARGO ?= cargo
PYTHON ?= python3
ACCEPTANCE := services/server/tests/acceptance

.PHONY: help demo test test-rust test-acceptance lint load bench clean

help:
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

demo: ## stream real Parquet to a small trainer and show what it took
	$(CARGO) run --release -- demo

test: test-rust test-acceptance ## all tests; installs what they need

test-rust: ## the tests of the crates
	$(CARGO) test --release --workspace

test-acceptance: ## stock pyarrow against the release binary
	$(CARGO) build --release --workspace
	$(PYTHON) $(ACCEPTANCE)/prepare.py
	target/acceptance/venv/bin/python -m pytest $(ACCEPTANCE)

lint: ## formatting, clippy, documentation, dependencies
	$(CARGO) fmt --all --check
	$(CARGO) clippy --release --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --release --workspace --no-deps
	.ci/deny

load: ## Forebay beside what people use today, and cold epochs
	$(CARGO) build --release --workspace
	target/release/forebay-load peers --scenario tensor
	target/release/forebay-load peers --scenario clicks
	target/release/forebay-load cold --scenario clicks

bench: ## the benchmarks of docs/benchmarks.md
	$(CARGO) bench --workspace

clean: ## remove everything that was built or downloaded
	$(CARGO) clean
