"""Success of tabular Q-learning on the puzzles of a preset.

    python experiments/q_learning.py PRESET ACTIONS OUTPUT [KEY=VALUE...]

The table learns with ACTIONS actions on training puzzles, then plays the validation puzzles. In
states that it lacks, it acts at random. A second table first explores each validation puzzle. OUTPUT
is a JSON file.
"""

import json
import sys
from pathlib import Path

from spa.config.load import load_config
from spa_bench.q_learning.validation import validate_tables

preset, actions, output = sys.argv[1:4]
found = validate_tables(load_config(preset, sys.argv[4:]), int(actions))
assert found is not None, "the game does not list its actions or cannot be copied"
Path(output).write_text(json.dumps(found) + "\n")
