#!/usr/bin/env bash
# build.sh DIR: the package with its hot modules compiled, in DIR/fairbench, to be put on PYTHONPATH.
# For the interpreter that $PYTHON names (python3); needs a C compiler and minutes.
set -euo pipefail

root=$(cd "$(dirname "$0")/../.." && pwd)
dir=${1:?usage: build.sh DIR}
wheels=$(mktemp -d)
trap 'rm -rf "$wheels"' EXIT
HATCH_BUILD_HOOK_ENABLE_CUSTOM=1 "${PYTHON:-python3}" -m pip --disable-pip-version-check \
    wheel --quiet --no-deps --wheel-dir "$wheels" "$root"
rm -rf "$dir"
"${PYTHON:-python3}" -m zipfile -e "$wheels"/*.whl "$dir"
