"""Descriptions of the columns of world-model data. The cards of shared data sets and
docs/formats.md show them."""

COLUMNS = {
    "data_source": "environment tag",
    "prompt": "the conversation before the response, as chat messages",
    "response": "the response with the true state and the true next state; SFT trains on this string",
    "ability": 'always "world_model"',
    "reward_model": "JSON with the keys of the original SPA data; `ground_truth` is the next state",
    "extra_info": "JSON with `state_text`, `noise_seed`, `group` and `member` of the episode, `penalty` "
    "of the turn and `score` of the episode",
    "episode_id": "id of the episode in `trajectories/`",
    "turn": "number of the turn in the episode, from 0",
    "puzzle_seed": "seed of the puzzle, or -1 if it is unknown",
    "puzzle_hash": "content hash of the puzzle; no hash is in both the training and the validation file",
    "success": "whether the episode reached the goal",
    "reward": "reward of the turn",
    "state": "true state before the response",
    "next_state": "true state after the executed actions",
    "executed": "actions that the environment executed",
    "predicted": "next state that the model predicted; null if the response has none",
    "observed": "current state that the model described; null if the response has none",
    "images": "PNG files of the prompt's pictures; the column exists only in data with pictures",
}
