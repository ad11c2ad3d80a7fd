#!/bin/sh
# What the browser tests need: Debian's chromium with its driver, and selenium. Usage: tests/browser/install.sh [PYTHON]
set -eu
python=${1:-.venv/bin/python}
if ! command -v chromium >/dev/null || ! command -v chromedriver >/dev/null; then
    as_root=$( [ "$(id -u)" = 0 ] || echo sudo )
    $as_root apt-get update -qq
    $as_root apt-get install -y -qq --no-install-recommends chromium chromium-driver fonts-dejavu-core
fi
"$python" -c 'import selenium' 2>/dev/null || "$python" -m pip install --quiet 'selenium>=4.20,<5'
