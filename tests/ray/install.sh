#!/bin/sh
# An environment of its own for Ray, which brings many packages. Usage: tests/ray/install.sh FOLDER
set -eu
folder=${1:-.venv-ray}
python=${PYTHON:-python3}
if [ ! -e "$folder/.ready" ]; then
    "$python" -m venv "$folder"
    "$folder/bin/python" -m pip install --quiet --editable '.[ray]' 'pytest>=8' 'hypothesis>=6' psutil --constraint constraints-cpu.txt
    touch "$folder/.ready"
fi
