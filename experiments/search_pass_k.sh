#!/usr/bin/env bash
# An arm whose SFT has ended (experiments/search.sh), sampled SAMPLES times (default 8) on each of its 256 puzzles: what it
# could win by choosing among k episodes, if it knew the right one.
#   experiments/search_pass_k.sh ARM SEED [RUNS]
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/search_settings.sh"
samples=${SAMPLES:-8}
$python -m spa eval "$folder/sft" --config smol_frozen_lake "${frozen[@]}" --puzzles 256 --samples "$samples" \
  --output "$results/$name-$samples.json"
