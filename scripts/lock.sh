#!/usr/bin/env bash
# Resolves requirements*.in, the peers' of the benchmarks too, for every platform and Python from 3.11 on, with hashes and without index addresses; then Kafka's jars.
set -euo pipefail
cd "$(dirname "$0")/.."
for file in requirements.in requirements-dev.in bench/peers/*/requirements.in; do
  .venv/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
    --custom-compile-command "make lock" "$file" --output-file "${file%.in}.lock"
done
.venv/bin/python scripts/lock_jars.py
