#!/bin/sh
# Write constraints-cpu.txt and requirements-hashed.txt from pyproject.toml: the tested versions, and their hashes.
# Usage: tools/pins.sh [--upgrade]      needs uv
# A pin is kept while pyproject.toml allows it. --upgrade takes the newest versions, and --upgrade-package NAME one.
set -eu
cd "$(dirname "$0")/.."
torch=2.13.0  # exact, so that an index with CPU builds gives the CPU build

compile() {
    output=$1
    shift
    uv pip compile --quiet --config-file tools/pins.toml --python-version 3.11.7 --no-annotate --no-header \
        --no-emit-package spa-agent --output-file "$output" "$@" >/dev/null
}

head_of() {  # the first lines of a file, which uv leaves out
    printf '%s\n' "$2" | cat - "$1" > "$1.new"
    mv "$1.new" "$1"
}

# Everything that `make install`, `make docs` and most of `make test-extra` install.
printf 'torch==%s\nselenium\n' "$torch" | compile constraints-cpu.txt pyproject.toml - \
    --extra dev --extra docs --extra datasets --extra reasoning-gym --extra textarena --extra textworld "$@"
# What [dev] needs. torch is left out: every index has builds of its own.
printf 'torch==%s\n' "$torch" | compile requirements-hashed.txt pyproject.toml - \
    --extra dev --constraint constraints-cpu.txt --generate-hashes --no-emit-package torch
head_of constraints-cpu.txt "# The tested versions. Made by tools/pins.sh from pyproject.toml, which has the ranges that work."
head_of requirements-hashed.txt "# Made by tools/pins.sh: what spa-agent[dev] needs, without torch. \`make install HASHES=1\` installs it."
