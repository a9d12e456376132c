# The commands of the README. `make` without a target lists them.

CARGO ?= cargo
PYTHON ?= python3
ACCEPTANCE := services/server/tests/acceptance
PACKAGE := clients/python
RESULTS := target/loadtests/results
# The systems of the charts in docs/explanation/benchmarks.md, in an environment that has all of their packages.
COMPARED := copy-only,forebay,forebay-hash,forebay-global,stock,pyarrow-server,forebay-pyarrow-hash,forebay-python,torch-loader,torch-loader-columns,pyarrow-loader
PEERS := target/release/forebay-load peers --python target/python/torch/bin/python --only $(COMPARED)
# Cargo's runner for the host: each test binary and documentation example has a limit of time.
LIMITED := env "CARGO_TARGET_$$(rustc -vV | sed -n 's/^host: //p' | tr 'a-z-' 'A-Z_')_RUNNER=$(CURDIR)/.ci/limited"
# Processes of each Python suite of `make test`.
PROCESSES := --numprocesses 2 --dist loadfile
# Time of each fuzz target.
FUZZ_SECONDS ?= 3600
FUZZ_TARGETS := $(basename $(notdir $(wildcard fuzz/fuzz_targets/*.rs)))
MUTANTS = $(CARGO) mutants --workspace --config .ci/mutants.toml --output target $(MUTANTS_SHARD:%=--shard %)
FUZZ_OPTIONS = -max_total_time=$(FUZZ_SECONDS) -timeout=10 -rss_limit_mb=2048

.PHONY: help demo test binaries test-data test-rust test-acceptance test-python test-python-versions wheel wheel-manylinux lint docs prose deploy-check load nightly nightly-tests nightly-load bench fuzz fuzz-targets mutants clean

help:
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

demo: ## stream generated Parquet to a small trainer and print rates
	$(CARGO) run --release -- demo

# The Python tests wait for other processes most of the time. Therefore the two suites run at once, each with two processes. All tests of
# a file run in one process, because they share servers. The output is grouped where make can do that.
test: test-rust ## test-rust, test-acceptance and test-python; creates their Python environments
	$(MAKE) -j2 $(if $(filter output-sync,$(.FEATURES)),--output-sync=target) test-acceptance test-python

# `cargo test` overwrites the binaries in target/release with test builds. `make binaries` restores those of a release.
test-rust: ## tests and documentation examples of the crates, with overflow checks and debug assertions
	$(LIMITED) $(CARGO) --config .ci/test.toml test --release --workspace --tests
	$(LIMITED) $(CARGO) --config .ci/test.toml test --release --workspace --doc
	$(MAKE) binaries

binaries:
	$(CARGO) build --release --workspace

# The environment of the acceptance tests, and the data of both Python suites.
test-data:
	$(PYTHON) $(ACCEPTANCE)/prepare.py

test-acceptance: binaries test-data ## tests of the release binary with stock pyarrow
	target/acceptance/venv/bin/python -m pytest $(PROCESSES) $(ACCEPTANCE)

# Tests with the mark `once` run only in the first environment, see pytest.ini.
test-python: wheel test-data ## tests of the installed Python wheel
	target/python/venv/bin/python -m pytest $(PROCESSES) $(PACKAGE)/tests
	@if [ -e target/python/torch.missing ]; then \
		echo "skipped: tests with PyTorch: $$(cat target/python/torch.missing)"; [ "$$FOREBAY_STRICT_SKIPS" != 1 ]; \
	else target/python/torch/bin/python -m pytest $(PROCESSES) -m "not once" $(PACKAGE)/tests; fi

test-python-versions: wheel ## tests of the wheel with each version of Python from 3.9 to 3.14 that this machine has
	$(PYTHON) $(PACKAGE)/versions.py target/python/wheels/*.whl

wheel: binaries ## the Python package with the server, under target/python/wheels
	$(PYTHON) $(PACKAGE)/prepare.py

wheel-manylinux: binaries ## the wheel for Linux with glibc 2.28 or later, under target/python/manylinux; verified by auditwheel
	$(PYTHON) $(PACKAGE)/manylinux.py

lint: ## formatting, language, import cycles, dependencies between crates, clippy, documentation, dependencies
	$(CARGO) fmt --all --check
	.ci/prose
	.ci/circles
	.ci/crates
	$(CARGO) clippy --release --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --release --workspace --no-deps
	@if command -v cargo-deny >/dev/null || [ -x target/tools/bin/cargo-deny ]; then .ci/deny; \
	else echo "skipped: licenses, sources and versions of dependencies (cargo-deny is not installed; .ci/deny installs it and runs it)"; fi

docs: ## the documentation site under target/docs/site; fails on broken links
	.ci/docs

prose: ## words of .ci/retired.txt in code and docs, doc comments without a subject
	.ci/prose

deploy-check: ## rules, dashboards, Dockerfile, compose file and chart of deploy/; GitHub workflows
	.ci/deploy
	.ci/workflows

load: wheel ## load tests: comparison with other systems, and cold epochs
	$(PEERS) --scenario tensor
	$(PEERS) --scenario clicks
	target/release/forebay-load cold --scenario clicks

nightly: nightly-tests nightly-load ## long tests and all load tests

nightly-tests: wheel test-data ## long tests: licenses and sources of dependencies, the Rust tests compiled as a release, an overloaded store, hanging disks, several servers, an earlier server, 10,000 generated requests compared with DuckDB, Slurm, instruction counts, the frameworks of trainers, the loaders that users come from, 10,000 simulated runs each of the training path and of a cluster, the wheel for older Linux
	.ci/deny
	$(LIMITED) $(CARGO) test --release --workspace --tests
	FOREBAY_OVERLOAD_SECONDS=300 target/acceptance/venv/bin/python -m pytest $(ACCEPTANCE)/test_overload.py
	target/acceptance/venv/bin/python $(ACCEPTANCE)/hang_rates.py files memory cache store --least 0.9
	old="$$(.ci/old-server)" && FOREBAY_OLD_BIN="$$old" FOREBAY_TIER_SEEDS=20 FOREBAY_TIER_RANKS=256 FOREBAY_TIER_BLOCKS=10000 \
		FOREBAY_TIER_FLAPPING=60 target/python/venv/bin/python -m pytest $(PACKAGE)/tests/tier
	target/acceptance/venv/bin/python $(ACCEPTANCE)/differential --cases 10000
	FOREBAY_SLURM=1 target/acceptance/venv/bin/python -m pytest $(ACCEPTANCE)/test_slurm.py
	target/acceptance/venv/bin/python loadtests/instructions.py --check
	$(PYTHON) $(PACKAGE)/prepare.py --frameworks && target/python/frameworks/bin/python -m pytest -o timeout=900 $(PACKAGE)/tests/frameworks
	$(PYTHON) $(PACKAGE)/prepare.py --migration && target/python/migration/bin/python -m pytest -o timeout=900 $(PACKAGE)/tests/migration
	FOREBAY_SIMULATION_SEEDS=10000 $(CARGO) test --release -p forebay-loader --test simulation -- --nocapture
	FOREBAY_SIMULATION_SEEDS=10000 FOREBAY_SIMULATION_LARGE=20 $(CARGO) test --release -p forebay-placement --test cluster -- --nocapture
	$(MAKE) wheel-manylinux

nightly-load: wheel ## load tests: several servers, soak, attacks, every comparison, cold epochs, benchmarks
	mkdir -p $(RESULTS)
	target/release/forebay-load tier --scenario tier --json $(RESULTS)/tier.json
	target/release/forebay-load soak --scenario soak --jobs 8 --stalled 1 --minutes 60 --cache-memory 1GiB \
		--compute 200ms --changes 30s --faults 0.02 --json $(RESULTS)/soak.json
	target/release/forebay-load hostile --json $(RESULTS)/hostile.json
	$(PEERS) --scenario tensor --json $(RESULTS)/peers-tensor.json
	$(PEERS) --scenario clicks --json $(RESULTS)/peers-clicks.json
	target/release/forebay-load cold --scenario clicks --json $(RESULTS)/cold.json
	$(CARGO) bench --workspace
	@echo "results: $(RESULTS)"

bench: ## the benchmarks of docs/explanation/benchmarks.md
	$(CARGO) bench --workspace

fuzz: $(FUZZ_TARGETS:%=fuzz-%) ## fuzz targets, FUZZ_SECONDS each (3600); needs nightly Rust, see fuzz/README.md

fuzz-targets:
	@printf '%s\n' $(FUZZ_TARGETS)

fuzz-%:
	mkdir -p fuzz/target/corpus/$*
	$(CARGO) +nightly fuzz run --fuzz-dir fuzz --release --sanitizer none --all-features $* \
		$(CURDIR)/fuzz/target/corpus/$* $(CURDIR)/fuzz/corpus/$* -- $(FUZZ_OPTIONS) \
		$(addprefix -dict=$(CURDIR)/,$(wildcard fuzz/dictionaries/$*.dict))

mutants: ## whether a test notices each small change of the pure code; needs `cargo install cargo-mutants`, takes a day; MUTANTS_SHARD=0/16 is the first of 16 parts
	# A few cases of the property tests notice most mutants. The others are tried again with all cases.
	PROPTEST_CASES=100 $(MUTANTS) || [ $$? = 2 ] || [ $$? = 3 ]
	# Status 3: every mutant was noticed, some of them by a test that hung.
	$(MUTANTS) --iterate || [ $$? = 3 ]

clean: ## remove the target directory
	$(CARGO) clean
