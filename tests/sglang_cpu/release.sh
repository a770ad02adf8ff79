#!/usr/bin/env bash
# What the plugin does inside another SGLang: release.sh RELEASE [STREAMS]. Needs the environment of
# install.sh, whose Python FAIRBENCH_SGLANG_PYTHON names. The release's wheel is downloaded without
# its dependencies and unpacked beside that environment, which stays as it is; its classes are
# driven on the CPU, also by `fairbench engine-check`. The result goes into docs/reference/releases.md.
# Exits non-zero if a request was lost.
set -euo pipefail

release=${1:?usage: release.sh RELEASE [STREAMS]}
here=$(cd "$(dirname "$0")" && pwd)
python=${FAIRBENCH_SGLANG_PYTHON:?names the Python of the environment that install.sh has made}
wheels=$(mktemp -d)
trap 'rm -rf "$wheels"' EXIT

"$python" -m pip --disable-pip-version-check --quiet download --no-deps --dest "$wheels" "sglang==$release"
"$python" -m zipfile -e "$wheels"/sglang-*.whl "$wheels/sglang"
cd "$here/../.."
PYTHONPATH="bench:$wheels/sglang" "$python" -m tests.sglang_cpu.release_check "${@:2}"
