"""Take out of single moves what they pass: `python experiments/without_way_moves.py DATA OUT SEED`.

DATA is the folder of a self-play stage, OUT gets its two data sets. A response `<think>Left23c>13` becomes
`<think>Left13`, which says no more than the texts of both states. SEED is not used.
"""

import re
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

source, out = Path(sys.argv[1]), Path(sys.argv[2])
out.mkdir(parents=True, exist_ok=True)
for name in ("wm_train.parquet", "wm_val.parquet"):
    moves = pq.read_table(source / name)
    shorter = [re.sub(r"\d\d[a-e]?>", "", text) for text in moves["response"].to_pylist()]
    place = moves.column_names.index("response")
    pq.write_table(moves.set_column(place, "response", pa.array(shorter)), out / name)
