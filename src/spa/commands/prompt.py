"""`spa env prompt`: print the exact prompt of an environment."""

import argparse
from typing import Any

from spa.commands.arguments import add_environment, say, whole_number
from spa.types import Message

BORDER = "│"


def prompt_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `spa env prompt` to `parser`."""
    add_environment(parser, "configuration with the prompt settings (default: base)")
    parser.add_argument(
        "--seed", type=whole_number, default=10, metavar="N", help="seed of the puzzle"
    )
    parser.add_argument(
        "--mode",
        choices=["base", "add_worldmodel"],
        help="prompt format (default: ctx_manager.mode of the configuration)",
    )
    parser.add_argument(
        "--tokens",
        action="store_true",
        help=f"print the text that the model reads, with {BORDER} between tokens",
    )


def prompt(options: argparse.Namespace) -> int:
    """Print the first messages of an episode, exactly as PPO and evaluation send them to the
    model."""
    from spa.api.environments import find_spec
    from spa.config.load import load_config
    from spa.envs.registry import make_env
    from spa.recipes.prompters import make_prompter

    cfg = load_config(options.config, options.overrides)
    spec = find_spec(options.tag, cfg)
    env = make_env(spec.env_type, spec.env_config)
    env.reset(seed=options.seed)
    prompter = make_prompter(cfg, spec, options.mode or cfg.ctx_manager.mode)
    messages = prompter.first_messages(env)
    return say(
        [
            with_borders(cfg, messages, prompter.prefill)
            if options.tokens
            else as_text(messages, prompter.prefill)
        ]
    )


def as_text(messages: tuple[Message, ...], prefill: str) -> str:
    """Write the messages, each under its role, followed by the prefill of the response."""
    parts = [f"[{message['role']}]\n{message['content']}" for message in messages]
    return "\n\n".join([*parts, f"[assistant, response begins with]\n{prefill}"])


def with_borders(cfg: Any, messages: tuple[Message, ...], prefill: str) -> str:
    """Render the conversation with the chat template of `model_path`, with a border between tokens,
    followed by the number of tokens."""
    from spa.models.build import load_template

    template = load_template(cfg, cfg.model_path)
    ids = template.start(messages, prefill)
    # Tokens are decoded one by one and without clean-up, so that the pieces add up to the exact
    # text. Characters that span several tokens are the exception.
    pieces = [
        template.tokenizer.decode([index], clean_up_tokenization_spaces=False) for index in ids
    ]
    return BORDER.join(pieces) + f"\n\n{len(ids)} tokens"
