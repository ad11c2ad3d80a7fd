"""Success and length of the searches that a preset's format writes, from true copies of the game.

    python experiments/true_searches.py PRESET OUTPUT [KEY=VALUE...]

In every turn, the actions are the first ones of the path that the search finds. This is the most that
imitation of these searches can win. OUTPUT, a JSON file, gets whether each puzzle is won, and the
number of tokens of each response. The puzzles are the 256 development puzzles from seed 300,000, as
in `learned_world.sh`.
"""

import json
import sys
from pathlib import Path

from spa.config.load import load_config
from spa.examples.search import response
from spa.formats.registry import format_of
from spa.formats.search import BreadthFirst, run_search
from spa.models.build import load_template
from spa.recipes import setup

preset, output = sys.argv[1:3]
settings = ("seed.val=300000", "es_manager.val.env_groups=256", "es_manager.val.group_size=1")
cfg = load_config(preset, [*settings, *sys.argv[3:]])
form = format_of(cfg.agent_proxy.response_format)
assert isinstance(form, BreadthFirst)
template = load_template(cfg, cfg.model_path)
worker = setup.make_worker(cfg, None, mode="base")
rows = []
for spec in setup.episode_specs(cfg.es_manager.val, "val", base_seed=cfg.seed.val, step=0):
    look = worker.peek_reset(spec)
    assert look is not None
    env = look.env
    prompter = worker.prompters[spec.tag]
    left = cfg.most_actions(spec.tag)
    tokens = []
    while env.state_outcome() == "" and left:
        true = form.reference(env)
        expand = true.__getitem__ if isinstance(true, dict) else true
        search = run_search(form.searching(env.state_key() or "", env), expand)
        if search.path is None:
            break
        part = search.path[: min(left, prompter.max_actions_per_turn)]
        text = response(form.written(search, env), part, prompter)
        tokens.append(len(template.response_ids(text, prompter.prefill)))
        for name in part:
            action = env.to_action(name)
            assert action is not None
            env.step(action)
        left -= len(part)
    rows.append({"won": env.state_outcome() == "goal", "tokens": tokens})
limit = cfg.actor_rollout_ref.rollout.response_length
lengths = [count for row in rows for count in row["tokens"]]
fits = [row["won"] and max(row["tokens"]) <= limit for row in rows]
result = {
    "preset": preset,
    "settings": [*settings, *sys.argv[3:]],
    "won": round(sum(row["won"] for row in rows) / len(rows), 4),
    "won_within_response_length": round(sum(fits) / len(rows), 4),
    "mean_tokens": round(sum(lengths) / len(lengths), 1),
    "puzzles": rows,
}
Path(output).write_text(json.dumps(result), encoding="utf-8")
