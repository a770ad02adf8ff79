#!/usr/bin/env bash
# fork.sh PYTHON DIR [FOLDER]: make DIR/bin/python, the environment of PYTHON with another SGLang.
# FOLDER is the package of a checkout, such as ~/sglang/python/sglang, and stays where it is. Without
# FOLDER, DIR gets a copy of PYTHON's own SGLang, for a patch; the command prints the copy's parent.
set -euo pipefail
python=${1:?usage: fork.sh PYTHON DIR [FOLDER]}
target=${2:?usage: fork.sh PYTHON DIR [FOLDER]}

packages='import sysconfig; print(sysconfig.get_path("purelib"))'
theirs=$("$python" -c "$packages")
[ ! -e "$target" ] || { echo "fork.sh: $target exists" >&2; exit 2; }
"$python" -m venv --without-pip "$target"
ours=$("$target/bin/python" -c "$packages")
echo "$theirs" >"$ours/engine.pth"
# the stand-ins for GPU packages that tests/sglang_cpu/install.sh has installed
[ ! -e "$theirs/sglang_cpu_stubs.py" ] || echo 'import sglang_cpu_stubs' >>"$ours/engine.pth"
if [ $# -gt 2 ]; then
    ln -s "$(cd "$3" && pwd)" "$ours/sglang"
else
    cp -rp "$theirs/sglang" "$ours/sglang"
    echo "$ours"
fi
