"""Show the examples on which the world model is fine-tuned (stage 1), and mark the text that
contributes to the loss."""

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from spa.formats.blocks import find_block
from spa.run.console import printable
from spa_report.reading import RunFolder, StageFolder, flatten
from spa_report.replay import shown

LIMIT = 10


def example_files(run: RunFolder) -> list[tuple[str, Path, StageFolder]]:
    """List the data files of a run as (name, path, stage), training data first."""
    return [
        # `wm_train.parquet` -> `train`
        (printable(f"{stage.label}, {name[3:-8]}"), path, stage)
        for name in ("wm_train.parquet", "wm_val.parquet")
        for stage in run.stages
        if (path := stage.path / name).is_file()
    ]


def examples(run: RunFolder, file: int = 0, offset: int = 0) -> dict[str, Any]:
    """Return a page of `LIMIT` examples from data file number `file`, starting at `offset`. The
    page also has the total number of examples and the names of all data files.

    Each response is a list of pairs: a part of the text, and whether it contributes to the loss.
    Raises OSError or ValueError if the file is not readable as Parquet.
    """
    files = example_files(run)
    page: dict[str, Any] = {
        "files": [name for name, *_ in files],
        "total": 0,
        "examples": [],
        "loss_on": "response",
    }
    if not 0 <= file < len(files):
        return page
    _, path, data = files[file]
    # The SFT stage that trains on this file determines which text contributes to the loss.
    stages = [stage for stage in run.find("sft", data.arm) if stage.seed == data.seed]
    loss_on = (
        str(flatten(stages[0].config).get("sft.data.loss_on", "response")) if stages else "response"
    )
    table = pq.read_table(path, columns=["prompt", "response", "episode_id", "turn", "success"])
    rows = table.slice(offset, LIMIT).to_pylist()
    return {
        **page,
        "total": table.num_rows,
        "loss_on": printable(loss_on),
        "examples": [
            {
                "name": shown(f"{row['episode_id']}, turn {(row['turn'] or 0) + 1}", 200),
                "success": bool(row["success"]),
                "messages": [
                    [shown(part["role"], 40), shown(part["content"])] for part in row["prompt"]
                ],
                "response": [
                    [shown(text), trained] for text, trained in _spans(row["response"], loss_on)
                ],
            }
            for row in rows
        ],
    }


def _spans(response: str, loss_on: str) -> list[tuple[str, bool]]:
    """Split a response into pairs of a part and whether it contributes to the loss under
    `sft.data.loss_on`."""
    if loss_on not in ("states_only", "no_states"):
        # The mask of a custom `loss_on` is not computed here, so nothing is marked.
        return [(response, loss_on in ("response", "act_obs"))]
    # `no_states` and `states_only` are complements, so each part contributes under exactly one of
    # them.
    parts = []
    start = 0
    blocks = [
        block for tag in ("observation", "prediction") if (block := find_block(response, tag))
    ]
    for begin, end in sorted(blocks):
        parts += [
            (response[start:begin], loss_on == "no_states"),
            (response[begin:end], loss_on == "states_only"),
        ]
        start = end
    return [part for part in (*parts, (response[start:], loss_on == "no_states")) if part[0]]
