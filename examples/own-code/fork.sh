#!/usr/bin/env bash
# fork.sh PYTHON DIR [FOLDER]: make DIR/bin/python, a copy of PYTHON's environment with another SGLang.
# FOLDER is the package of a checkout, such as ~/sglang/python/sglang; it is used in place. Without
# FOLDER, DIR gets a copy of PYTHON's own SGLang that you can patch; the command prints its parent folder.
set -euo pipefail
python=${1:?usage: fork.sh PYTHON DIR [FOLDER]}
target=${2:?usage: fork.sh PYTHON DIR [FOLDER]}

packages='import sysconfig; print(sysconfig.get_path("purelib"))'
theirs=$("$python" -c "$packages")
[ ! -e "$target" ] || { echo "fork.sh: $target exists" >&2; exit 2; }
"$python" -m venv --without-pip "$target"
ours=$("$target/bin/python" -c "$packages")
echo "$theirs" >"$ours/engine.pth"
# stubs of GPU packages, installed by tests/sglang_cpu/install.sh
[ ! -e "$theirs/sglang_cpu_stubs.py" ] || echo 'import sglang_cpu_stubs' >>"$ours/engine.pth"
if [ $# -gt 2 ]; then
    ln -s "$(cd "$3" && pwd)" "$ours/sglang"
else
    cp -rp "$theirs/sglang" "$ours/sglang"
    echo "$ours"
fi
