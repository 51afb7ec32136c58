# SPDX-License-Identifier: Apache-2.0
# FlexInfer. `make help` lists every target; `make run` and `make test` are the two to know.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUN := .run
IMG ?= flexinfer:dev
CLUSTER ?= local
SAMPLES ?=
ONCE ?=
PYTEST_ARGS ?=
SOAK ?=
BENCH ?=
KIND_VERSION := v0.33.0
KUBECTL := $(BIN)/kubectl

export CLUSTER SAMPLES ONCE

##@ Start here

.PHONY: help
help: ## Show this help
	@awk -v tty="$$(test -t 1 && echo 1 || true)" \
	  'function paint(code, text) {return tty ? "\033[" code "m" text "\033[0m" : text} \
	  BEGIN {FS = ":.*##"; print "Usage: make " paint(1, "<target>")} \
	  /^##@/ {print "\n" paint(1, substr($$0, 5))} \
	  /^[a-z0-9-]+:.*##/ {print "  " paint(36, sprintf("%-16s", $$1)) " " $$2}' $(MAKEFILE_LIST)

.PHONY: run
run: env ## Run FlexInfer against a local control plane (CLUSTER=kind|current, SAMPLES=1, ONCE=1)
	@exec $(BIN)/python -m hack.localcluster

# The unit tests need no control plane, so a first build goes on beside them.
.PHONY: test
test: env ## Run unit, integration and fault tests, with coverage
	@mkdir -p $(RUN) && $(BIN)/coverage erase
	@$(BIN)/python -m flexinfer.envtest.binaries --check
	@nice $(BIN)/python -m flexinfer.envtest.binaries >$(RUN)/control-plane & build=$$!; result=0; \
	  $(BIN)/coverage run -m pytest $(PYTEST_ARGS) 2>&1 | tee $(RUN)/pytest.log || result=$$?; \
	  wait $$build; exit $$result
	@$(if $(PYTEST_ARGS),true,hack/coverage.sh $(BIN)/coverage)
	@grep -E '^=+ .* in [0-9.]+s' $(RUN)/pytest.log | tail -n 1

##@ Development

.PHONY: env
env: $(VENV)/.stamp ## Make the virtual environment from the locked requirements

$(VENV)/.stamp: requirements/dev.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("FlexInfer needs Python 3.11 or newer; name one with: make PYTHON=/path/to/python3")'
	@echo "Installing the locked requirements into $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --requirement requirements/dev.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

.PHONY: control-plane
control-plane: env ## Find, or build once, the control plane's binaries
	@$(BIN)/python -m flexinfer.envtest.binaries

.PHONY: test-unit
test-unit: env ## Run the tests that need no control plane
	$(BIN)/python -m pytest test/unit $(PYTEST_ARGS)

.PHONY: soak-cases
soak-cases: env control-plane ## Run the fault cases at their full lengths and counts
	$(BIN)/python -m pytest -m soak test/faults $(PYTEST_ARGS)

.PHONY: test-mutations
test-mutations: env control-plane ## Bring faults back one by one and expect their tests to fail
	$(BIN)/python -m hack.mutations

.PHONY: test-e2e
test-e2e: env ## Run the end-to-end test on a kind cluster (needs a container engine)
	$(BIN)/python -m pytest -m e2e test/e2e $(PYTEST_ARGS)

.PHONY: lint
lint: env ## Check style, types, import contracts, generated files and the wheel
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/flexinfer manifests --check
	hack/check-wheel.sh $(BIN)

.PHONY: fmt
fmt: env ## Format the code and mend what the linter can
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

.PHONY: manifests
manifests: env ## Generate CRDs, roles and the API reference from the types
	$(BIN)/flexinfer manifests

.PHONY: lock
lock: env ## Lock the requirements anew, with hashes
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --python-version 3.11 \
	  --custom-compile-command "make lock" pyproject.toml --output-file requirements/run.txt
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --python-version 3.11 \
	  --custom-compile-command "make lock" --constraint requirements/run.txt \
	  pyproject.toml --extra envtest --group dev --output-file requirements/dev.txt
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --python-version 3.11 \
	  --custom-compile-command "make lock" --allow-unsafe requirements/build.in --output-file requirements/build.txt
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --python-version 3.11 \
	  --custom-compile-command "make lock" requirements/bench.in --output-file requirements/bench.txt

.PHONY: bench
bench: env control-plane ## Measure against the peers (needs Go); writes bench-results.json, docs/performance.md
	$(BIN)/python -m hack.bench $(BENCH)

.PHONY: bench-growth
bench-growth: env control-plane ## Measure what one more object costs, up to 50,000 (needs Go)
	$(BIN)/python -m hack.bench --growth $(BENCH)

.PHONY: soak
soak: env control-plane ## Break things for 10 minutes and see all heal (SOAK="--minutes 30")
	$(BIN)/python -m hack.soak $(SOAK)

##@ Cluster (the current kubectl context)

.PHONY: install
install: env ## Install the CRDs
	$(KUBECTL) apply --server-side -k config/crd

.PHONY: uninstall
uninstall: env ## Remove the CRDs, and with them every object of their kinds
	$(KUBECTL) delete --ignore-not-found -k config/crd

.PHONY: deploy
deploy: env ## Deploy CRDs, roles and the manager with image IMG
	@hack/render.sh $(KUBECTL) "$(IMG)" | $(KUBECTL) apply --server-side -f -

.PHONY: undeploy
undeploy: env ## Remove all that deploy made, and with the CRDs every Model
	@hack/render.sh $(KUBECTL) "$(IMG)" | $(KUBECTL) delete --ignore-not-found -f -

.PHONY: build-installer
build-installer: env ## Write dist/install.yaml: all that deploy would apply
	@mkdir -p dist && hack/render.sh $(KUBECTL) "$(IMG)" > dist/install.yaml && echo "dist/install.yaml"

.PHONY: docker-build
docker-build: ## Build the image IMG (needs a container engine)
	@engine=$$(hack/container-engine.sh); "$$engine" build --tag $(IMG) .

.PHONY: kind-up
kind-up: ## Make a kind cluster named flexinfer (needs a container engine)
	@hack/kind.sh up $(KIND_VERSION)

.PHONY: kind-down
kind-down: ## Delete the kind cluster named flexinfer
	@hack/kind.sh down $(KIND_VERSION)

.PHONY: clean
clean: ## Remove what builds and runs leave behind, but for the environment
	rm -rf $(RUN) dist build htmlcov .coverage .coverage.* bench-results.json
