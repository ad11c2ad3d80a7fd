"""What a configuration tells a model about an environment tag. Needs no torch: people who play use it too."""

from typing import Any

from spa.config.schema import Config, EnvSpec
from spa.envs.registry import make_env
from spa.prompts.parse import contains_marker
from spa.prompts.render import Prompter, PromptMode
from spa.prompts.sample import sample_reply


def make_prompter(cfg: Config, spec: EnvSpec, mode: PromptMode) -> Prompter:
    """The prompter of one tag. In the world-model format it shows a sample reply if `ctx_manager.example` says so."""
    proxy = cfg.agent_proxy
    instruction = spec.env_instruction
    if mode == "add_worldmodel":
        instruction = spec.env_instruction_add_worldmodel or spec.env_instruction
    settings: dict[str, Any] = {
        "mode": mode,
        "state_text": cfg.state_text,
        "enable_think": proxy.enable_think,
        "action_sep": spec.action_sep or proxy.action_sep,
        "max_turn": spec.max_turn or proxy.max_turn,
        "max_actions_per_turn": min(proxy.max_actions_per_turn, spec.max_actions_per_traj),
        "max_actions_per_traj": spec.max_actions_per_traj,
        "max_words": spec.max_tokens,
        "instruction": instruction,
        "show_legal_actions": spec.show_legal_actions,
        "placeholders": cfg.ctx_manager.placeholders,
        "reply_order": proxy.reply_order,
    }
    # Instructions that show the format themselves, as the original's do, are not contradicted by another sample.
    if mode == "add_worldmodel" and cfg.ctx_manager.example and not contains_marker(instruction or ""):
        settings["example"] = sample_reply(make_env(spec.env_type, spec.env_config), Prompter(**settings))
    return Prompter(**settings)
