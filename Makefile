# What people type. Every target makes its own .venv on first use (a minute or less).
PY := .venv/bin/python
JOBS ?= 2

.PHONY: help setup demo test lint generate vm-lite vm-qemu bench fuzz clean lock
help:  ## show this
	@grep -hE '^[a-z%-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

.venv/.run: requirements.lock packaging/bootstrap.py
	@python3 packaging/bootstrap.py
	@touch $@

.venv/.dev: requirements-dev.lock packaging/bootstrap.py
	@python3 packaging/bootstrap.py --dev
	@touch $@ .venv/.run

setup: .venv/.dev  ## .venv with all that tests, benches and the commands in docs/ need

demo: .venv/.run  ## a control plane, an agent and a real engine on this machine; DEMO='--once' ends after the answer
	@$(PY) -m llmgw up --demo $(DEMO)

test: .venv/.dev  ## the whole suite of this machine
	$(PY) -m pytest -n $(JOBS) --dist loadgroup $(PYTEST)

lint: .venv/.dev  ## format, lint, types, layers
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .
	.venv/bin/basedpyright --pythonpath $(PY)
	.venv/bin/lint-imports

generate: .venv/.dev  ## write what is made from config.py: the schema, the docs, the example
	$(PY) -m llmgw schema --format json-schema > nixos-module/schema.json
	$(PY) -m llmgw schema --format markdown > docs/configuration.md
	$(PY) -m llmgw schema --format example-toml > docs/agent.example.toml
	@if command -v nix-instantiate >/dev/null; then $(PY) packaging/generate.py; \
	else echo "not written: units and nodes from the NixOS module (apt install nix-bin)"; fi

vm-lite:  ## the VM tests on systemd-nspawn guests, as root; TESTS='failover adoption' for some
	python3 vm-tests/lite $(TESTS)

vm-qemu:  ## those that need a kernel of their own, on QEMU guests, as root; TESTS='oom mgmt-address' for some
	python3 vm-tests/qemu $(TESTS)

bench: bench-link bench-control bench-agent bench-supervisor bench-adoption bench-weights bench-discovery bench-threads  ## speed and memory, as ratios in one run; bench-link for one, BENCH='--repeats 5'

bench-%: .venv/.dev
	$(PY) -m tests.bench.$* $(BENCH)

soak-%: .venv/.dev  ## soak-link, soak-engines, soak-weights: random faults for long; SOAK='--minutes 60'
	$(PY) -m tests.soak.$* $(SOAK)

fuzz: .venv/.dev  ## throw files at the loader and the header readers, nonsense at an agent; FUZZ='--seconds 600'
	$(PY) -m tests.fuzz.config $(FUZZ)
	$(PY) -m tests.fuzz.headers $(FUZZ)
	$(PY) -m tests.fuzz.agent $(FUZZ)

lock: .venv/.dev  ## newest versions into the lock files
	.venv/bin/pip install --quiet uv
	echo setuptools | .venv/bin/uv pip compile --upgrade --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --extra control --extra hf --extra tracing --extra cli pyproject.toml - -o requirements.lock
	.venv/bin/uv pip compile --upgrade --universal --python-version 3.11 --generate-hashes --no-header --no-annotate -c requirements.lock --extra dev pyproject.toml -o requirements-dev.lock

clean:  ## remove what was made here
	rm -rf .venv build dist *.egg-info .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
