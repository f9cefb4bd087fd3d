# Every command of this repository; the logic is in scripts/ and devstack/. Bare `make` prints this list.
PYTHON ?= python3
BIN := .venv/bin
STACK := $(BIN)/python -m relay_devstack
PYTEST := $(BIN)/python -m pytest
# A process that writes no bytecode compiles everything it imports at every start, which doubles what a start costs.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: $(shell sed -n 's/^\([a-z][a-z-]*\):.*/\1/p' $(MAKEFILE_LIST))

help:
	@$(PYTHON) scripts/help.py $(MAKEFILE_LIST)

## Start
setup: # install the locked tools and the workspace into .venv (quick when nothing changed)
	@$(PYTHON) scripts/setup.py

demo: setup # start everything, play a day of a shop on real Kafka and PostgreSQL, check the sums, stop
	@$(BIN)/python -m demo

up: setup # start the whole stack in the background and print its addresses
	@$(STACK) up

down: setup # stop what `make up` started
	@$(STACK) down

logs: setup # follow the logs; S=matcher for one process
	@$(STACK) logs $(S)

lock: setup # resolve requirements*.in and Kafka's jars again
	@scripts/lock.sh

## Check
test: lint types arch setup # everything that CI runs
	@$(PYTEST) --numprocesses=2 --no-loadscope-reorder --durations=15

check: test # the same as test

fmt: setup # format and fix what can be fixed
	@$(BIN)/ruff format . && $(BIN)/ruff check --fix .

lint: setup # formatting and lint rules
	@$(BIN)/ruff format --check . && $(BIN)/ruff check .

types: setup # basedpyright, strict
	@$(BIN)/basedpyright

arch: setup # who may import whom
	@$(BIN)/lint-imports

test-unit: setup # pure rules, milliseconds
	@$(PYTEST) services/*/tests/unit

test-db: setup # operations and statements on a real PostgreSQL
	@$(PYTEST) services/*/tests/db

test-races: setup # two connections, one winner
	@$(PYTEST) tests/races

test-contracts: setup # schemas, examples, OpenAPI, error codes
	@$(PYTEST) tests/contracts

test-integration: setup # the running stack, crashes and restarts
	@$(PYTEST) tests/integration

test-long: setup # every test marked slow: random faults for ten minutes (RELAY_FAULT_SECONDS, RELAY_FAULT_SEED), PostgreSQL away for 90 s
	@$(PYTEST) -m slow

## Measure
bench: setup # the matcher and the pipeline beside their ceilings; ARGS="--quick match_rate", ARGS=--full
	@$(BIN)/python -m bench $(ARGS)

bench-peers: setup # DBOS, Restate, Temporal and JetStream at the same job, installed apart; ARGS="--waits 2000 --only dbos,restate"
	@$(BIN)/python -m bench.peers $(ARGS)

## Data
migrate: setup # apply the missing migrations to the stack's database
	@$(STACK) migrate

topics: setup # create the missing topics
	@$(STACK) topics

psql: setup # a prompt on the stack's database
	@$(STACK) psql

db-reset: setup # stop the stack and throw its data away
	@$(STACK) reset

## Docs
docs: setup # write the generated pages again
	@$(BIN)/python scripts/spec_coverage.py && $(BIN)/python scripts/docs.py
