"""Meaning of the columns of world-model data, for the card of a shared data set and for
docs/formats.md."""

COLUMNS = {
    "data_source": "environment tag",
    "prompt": "the conversation before the response, as chat messages",
    "response": "the response with the true state and next state: what SFT trains on",
    "ability": 'always "world_model"',
    "reward_model": "JSON in the original's shape; `ground_truth` is the next state",
    "extra_info": "JSON: `state_text`, `noise_seed`, `group`, `member`, `penalty` of the turn, `score` of the episode",
    "episode_id": "the episode in `trajectories/`",
    "turn": "turn of the episode, from 0",
    "puzzle_seed": "seed of the puzzle; -1 if unknown",
    "puzzle_hash": "content hash of the puzzle; the two files share none",
    "success": "whether the episode reached the goal",
    "reward": "reward of the turn",
    "state": "true state before the response",
    "next_state": "true state after the executed actions",
    "executed": "actions that the environment executed",
    "predicted": "next state that the model wrote; null if none",
    "observed": "state that the model wrote; null if none",
    "images": "PNG files of the prompt; only in data with images",
}
