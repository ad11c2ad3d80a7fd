#!/bin/sh
# run_spa.sh CONFIG [CKPT] [GENERATE_DATA] [key=value ...]    See run_spa.sh in the root of the repository.
exec "$(dirname "$0")/../../run_spa.sh" "$@"
