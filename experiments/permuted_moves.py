"""Permute the next states of single moves: `python experiments/permuted_moves.py DATA OUT SEED`.

DATA is the folder of a self-play stage, OUT gets its two data sets. Each data set keeps its
questions and its responses, but the responses are permuted at random.
"""

import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

source, out, seed = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
out.mkdir(parents=True, exist_ok=True)
for name in ("wm_train.parquet", "wm_val.parquet"):
    moves = pq.read_table(source / name)
    order = np.random.default_rng(seed).permutation(len(moves))
    place = moves.column_names.index("response")
    pq.write_table(moves.set_column(place, "response", moves["response"].take(order)), out / name)
