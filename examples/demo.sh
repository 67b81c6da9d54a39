#!/usr/bin/env bash
# The whole way on made-up patents, from a SQL query to predictions; run it again and it goes on.
# Usage: [BIN=folder/of/the/commands/] examples/demo.sh [FOLDER]
set -euo pipefail
folder=${1:-demo}
export PATH="${BIN:+$(cd "$BIN" && pwd):}$PATH"
mkdir -p "$folder"
cd "$folder"

run() {
  printf '\n$ %s\n' "$*"
  "$@"
}

run ewe-data sample --out table
run ewe-data fetch --source parquet --input table --out raw
run ewe-data relabel raw --out dataset
run ewe-data encode dataset --out tensors
run ewe train tensors --preset tiny --epochs 5 --out run
run ewe evaluate run tensors --split test_2015a
run ewe predict run tensors --top-k 3 --out predictions.jsonl
run head -n 3 predictions.jsonl
