#!/usr/bin/env bash
# SGLang on a machine without a GPU, for tests: install.sh DIR makes a virtual environment in which
# `DIR/bin/python -m sglang.launch_server --device cpu ...` works (DIR/model is a tiny model), with
# this project and its test tools. Takes 2 to 3 minutes and 2 GB. Needs Python 3.11.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
venv=${1:?usage: install.sh DIR}
other_release=0.5.17

"${PYTHON:-python3.11}" -m venv "$venv"
pip=("$venv/bin/python" -m pip --disable-pip-version-check --quiet)
"${pip[@]}" install --no-deps -r "$here/requirements.txt"
"${pip[@]}" install -c "$here/requirements.txt" "$here/../..[test]"

# In every process of this environment, before SGLang is imported.
site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
cp "$here/sglang_cpu_stubs.py" "$site/"
echo 'import sglang_cpu_stubs' >"$site/sglang_cpu_stubs.pth"

"$venv/bin/python" "$here/tiny_model.py" "$venv/model"

# The other release that the plugin fits: its source only, for the test of the hooks' targets.
"${pip[@]}" download --no-deps --dest "$venv/wheels" "sglang==$other_release"
"$venv/bin/python" -m zipfile -e "$venv"/wheels/sglang-$other_release-*.whl "$venv/sglang-$other_release"
