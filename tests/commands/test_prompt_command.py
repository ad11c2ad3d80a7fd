from spa.cli import main
from spa.config.load import load_config
from spa.envs.registry import make_env
from spa.models.build import load_template
from spa.recipes.prompters import make_prompter


def told(name: str, tag: str, mode: str, seed: int = 10):
    cfg = load_config(name)
    spec = cfg.custom_envs[tag]
    env = make_env(spec.env_type, spec.env_config)
    env.reset(seed=seed)
    prompter = make_prompter(cfg, spec, mode)
    return cfg, prompter, prompter.first_messages(env)


def test_it_prints_the_messages_that_a_model_gets(capsys):
    assert main(["env", "prompt", "Sudoku", "--mode", "add_worldmodel", "--seed", "3"]) == 0
    out = capsys.readouterr().out
    _, _, messages = told("base", "Sudoku", "add_worldmodel", seed=3)
    assert all(message["content"] in out for message in messages)
    assert "A sample reply:" in out and out.rstrip().endswith("<think>")


def test_token_borders_are_those_of_the_models_own_tokens(capsys):
    assert main(["env", "prompt", "FrozenLakeNoSlip", "--config", "demo", "--tokens"]) == 0
    shown, _, count = capsys.readouterr().out.rstrip().rpartition("\n\n")
    cfg, prompter, messages = told("demo", "FrozenLakeNoSlip", "add_worldmodel")
    template = load_template(cfg, cfg.model_path)
    ids = template.start(messages, prompter.prefill)
    assert count == f"{len(ids)} tokens" and len(shown.split("│")) == len(ids)
    assert shown.replace("│", "") == template.tokenizer.decode(
        ids, clean_up_tokenization_spaces=False
    )
