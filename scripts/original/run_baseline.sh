#!/bin/sh
# run_baseline.sh CONFIG [vanilla|state_estimation] [key=value ...]    See run_baseline.sh in the root of the repository.
exec "$(dirname "$0")/../../run_baseline.sh" "$@"
