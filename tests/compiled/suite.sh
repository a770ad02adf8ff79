#!/usr/bin/env bash
# suite.sh: the whole suite twice, interpreted and with the hot modules compiled; fails if either does.
# $PYTHON names the interpreter (python3), which has this project's "dev" extra. Takes half an hour.
set -uo pipefail

here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python3}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$here/build.sh" "$work/compiled" || exit
cd "$here/../.."

status=0
for package in "$PWD/bench" "$work/compiled"; do
    echo "== $package"
    FAIRBENCH_COMPILED=$work/compiled PYTHONPATH=$package \
        "$python" -m pytest -q -p no:cacheprovider -m "slow or not slow" "$@" || status=1
done
exit "$status"
