#!/usr/bin/env bash
# vLLM's scheduler on a machine without a GPU, for tests: install.sh DIR makes a virtual environment
# with vLLM, this project and its test tools. Nothing is served in it. Takes 2 to 3 minutes and
# 2 GB. Needs Python 3.11. Then:
#   DIR/bin/python -m pytest -m slow tests/sim/test_sim_vllm_differential.py \
#     tests/sim/test_sim_vllm_cells.py
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
venv=${1:?usage: install.sh DIR}

"${PYTHON:-python3.11}" -m venv "$venv"
pip=("$venv/bin/python" -m pip --disable-pip-version-check --quiet)
"${pip[@]}" install --no-deps -r "$here/requirements.txt"
"${pip[@]}" install -c "$here/requirements.txt" "$here/../..[test]"
