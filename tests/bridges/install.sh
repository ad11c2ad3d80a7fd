#!/bin/sh
# An environment of its own for a library, on top of the project's: nothing big is installed twice.
# Usage: tests/bridges/install.sh VENV LIBRARY FOLDER
set -eu
base=$1 library=$2 folder=$3
if [ ! -e "$folder/.ready" ]; then
    "$base/bin/python" -m venv --without-pip "$folder"
    packages=$("$base/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    here=$("$folder/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    printf '%s\nimport site; site.addsitedir("%s")\n' "$packages" "$packages" > "$here/zz_project.pth"
    extra=$(echo "$library" | tr _ -)
    own="tests/bridges/$library.txt" # pins that go before those of the project
    [ -e "$own" ] || own=/dev/null
    awk -F== '!($1 in seen) { print } { seen[$1] = 1 }' "$own" constraints-cpu.txt > "$folder/constraints.txt"
    "$base/bin/python" -m pip --python "$folder/bin/python" install --quiet ".[$extra]" --constraint "$folder/constraints.txt"
    touch "$folder/.ready"
fi
