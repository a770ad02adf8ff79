#!/usr/bin/env bash
# vLLM's scheduler on a machine without a GPU, for tests: install.sh DIR makes a virtual environment
# with vLLM, this project and its test tools, and a tiny model without weights in DIR/model. Takes
# about 5 minutes and 3 GB. Needs Python 3.11. Then:
#   DIR/bin/python -m pytest -m slow tests/sim/test_sim_vllm_differential.py \
#     tests/sim/test_sim_vllm_cells.py
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
venv=${1:?usage: install.sh DIR}

"${PYTHON:-python3.11}" -m venv "$venv"
pip=("$venv/bin/python" -m pip --disable-pip-version-check --quiet)
"${pip[@]}" install --no-deps -r "$here/requirements.txt"
"${pip[@]}" install --no-deps -r "$here/requirements-serve.txt"
"${pip[@]}" install -c "$here/requirements-serve.txt" "$here/../..[live,test]"
"$venv/bin/python" "$here/../sglang_cpu/tiny_model.py" "$venv/model"
# vLLM's attention on a CPU has no smaller heads.
sed -i 's/"head_dim": 16/"head_dim": 64/' "$venv/model/config.json"
