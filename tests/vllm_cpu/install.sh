#!/usr/bin/env bash
# vLLM on a machine without a GPU, for tests: install.sh DIR makes a virtual environment with vLLM,
# this project and its test tools, and a tiny model without weights in DIR/model; 163 s of CPU and
# 3.6 GB. Needs Python 3.11. Then:
#   FAIRBENCH_VLLM_PYTHON=DIR/bin/python pytest -m slow tests/load/test_live_run_vllm.py
# install.sh DIR classes leaves out what only a server needs: 69 s of CPU and 1.7 GB. For:
#   DIR/bin/python -m pytest -m slow tests/sim/test_sim_vllm_*.py
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
venv=${1:?usage: install.sh DIR [classes]}
part=${2:-server}

"${PYTHON:-python3.11}" -m venv "$venv"
install=("$venv/bin/python" -m pip --disable-pip-version-check --quiet install)
[ "$part" = server ] || install+=(--no-compile)  # of most there is nothing to import then
"${install[@]}" --no-deps -r "$here/requirements.txt"
[ "$part" != server ] || "${install[@]}" --no-deps -r "$here/requirements-serve.txt"
"${install[@]}" -c "$here/requirements-serve.txt" "$here/../..[live,test]"
[ "$part" = server ] || exit 0
"$venv/bin/python" "$here/../sglang_cpu/tiny_model.py" "$venv/model"
# vLLM's attention on a CPU has no smaller heads.
sed -i 's/"head_dim": 16/"head_dim": 64/' "$venv/model/config.json"
