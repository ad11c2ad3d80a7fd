"""The command line: light to start, and one clear message for whatever is wrong."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.light import HEAVY

from spa.cli import COMMANDS, execute, main, make_parser, parse
from spa.errors import ConfigError

NOT_LOADED = (*HEAVY, "jinja2")


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        check=False,
    )


def failed(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    """The message of a failing command."""
    status = main(list(args))
    said = capsys.readouterr()
    assert status == 2
    assert "Traceback" not in said.err + said.out
    assert said.err.startswith((f"spa {args[0]}: ", f"spa {' '.join(args[:2])}: ", "spa: "))
    return said.err


@pytest.mark.parametrize("args", [["--help"], [], ["--version"], ["nonsense"]])
def test_help_loads_no_heavy_module(args):
    code = (
        "import sys\nfrom spa.cli import main\n"
        f"status = main({args!r})\n"
        f"heavy = [name for name in {NOT_LOADED!r} if name in sys.modules]\n"
        "sys.exit(f'loaded {heavy}' if heavy else status)"
    )
    done = python(code)
    assert done.returncode == (2 if args == ["nonsense"] else 0), done.stderr
    assert (
        done.stdout
        if args != ["nonsense"]
        else done.stderr.startswith("spa: there is no command 'nonsense'")
    )


@pytest.mark.parametrize("name", COMMANDS)
def test_every_help_has_an_example_that_parses(name: str):
    command = COMMANDS[name]
    assert command.example in make_parser(name).format_help()
    program, *words = command.example.split()
    assert program == "spa" and words[: len(name.split())] == name.split()
    options = parse(name, words[len(name.split()) :])
    assert all("=" in override for override in options.overrides)


def test_the_flags_are_settings():
    from spa.commands.arguments import settings

    words = [
        "tiny",
        "--model",
        "a b",
        "--steps",
        "3",
        "--output-dir",
        "runs/x y",
        "seed.val=1",
        "--sweep",
        "a=1,2",
    ]
    options = parse("compare", words)
    assert options.overrides == ["seed.val=1"] and options.sweep == ["a=1,2"]
    assert settings(options) == [
        "model_path='a b'",
        "trainer.total_training_steps=3",
        "trainer.run_dir='runs/x y'",
        "seed.val=1",
    ]


def test_the_number_of_a_training_sets_all_its_seeds(tmp_path: Path):
    from spa.api.runs import configuration
    from spa.recipes.methods import configured

    assert configuration("tiny", None, [], seed=2) == configured("tiny", (), 2)
    with pytest.raises(SystemExit):
        execute(["run", "tiny", "--seed", "-1"])


LONG = [
    ["run"],
    *(["run", "--stages", stage] for stage in ("selfplay", "sft", "ppo")),
    ["run", "--method", "vanilla"],
    ["compare"],
]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["run", "demo", "last", "maybe"], "GENERATE_DATA is 'maybe'"),
        (["run", "demo", "newest"], "CKPT is 'newest'"),
        (["run", "demo", "²", "False"], "CKPT is '²'"),
        (["run", "demo", "20"], "from step 20: spa run demo 20 False"),
        (["run", "demo", "20", "True"], "from step 20: spa run demo 20 False"),
        (["run", "nowhere.yaml"], "nowhere.yaml"),
        (["compare", "demo", "--seeds", "0"], "--seeds is 0"),
        (["run", "demo", "last", "True", "--stages", "sft"], "give only one of these"),
        (
            ["run", "demo", "--stages", "selfplay,ppo"],
            "choose one or more consecutive stages of selfplay, sft, ppo",
        ),
        (
            ["run", "demo", "--stages", "play"],
            "choose one or more consecutive stages of selfplay, sft, ppo",
        ),
        (
            ["run", "demo", "--method", "vanilla", "--stages", "sft"],
            "give no other stage and no checkpoint",
        ),
        (
            ["compare", "demo", "--sweep", "algorithm.gamma=1,0.9", "--methods", "echo"],
            "either methods or the values",
        ),
        (
            ["compare", "demo", "--method", "echo", "--dry-run"],
            "to compare echo, name it in `methods`",
        ),
        (
            ["eval", "random", "--config", "demo", "--world-model", "--state-perplexity"],
            "two separate measurements",
        ),
        (
            ["eval", "random", "expert", "--config", "demo", "--output", "x.json"],
            "evaluate one model at a time",
        ),
        (["eval", "random"], "name a configuration"),
        (["doctor", "trainer.threads=4"], "only with --fit CONFIG"),
        (["doctor", "--gpu-memory", "80"], "only with --fit CONFIG"),
        (["doctor", "./nothing", "--fit", "tiny"], "nothing: the model folder does not exist"),
        (["eval", "random", "--config", "demo", "--prices", "1,2"], "remove --prices"),
        (["doctor", "--fit", "base", "--gpu-memory", "0"], "--gpu-memory must be greater than 0"),
        (
            ["run", "demo", "--method", "grid"],
            "there is no baseline 'grid'; choose from vanilla, vanilla_wm",
        ),
        (
            ["run", "demo", "--method", "vanilla", "ctx_manager.mode=add_worldmodel"],
            "choose the baseline vanilla_wm",
        ),
        (
            ["run", "demo", "--method", "vanilla_wm", "ctx_manager.mode=base"],
            "choose the baseline vanilla.",
        ),
        (
            ["run", "demo", "--method", "state_estimation", "state_text=grid"],
            "whose state_text is grid_and_coords",
        ),
        (["run", "demo", "--stages", "ppo", "es_manager.train.env_groups=0"], "env_groups"),
        (
            [
                "run",
                "demo",
                "--stages",
                "ppo",
                "es_manager.train.env_groups=1",
                "es_manager.train.group_size=2",
            ],
            "2 episodes that a step keeps",
        ),
    ],
)
def test_what_cannot_be_is_said(capsys, args, words):
    assert words in failed(capsys, *args)


@pytest.mark.parametrize(
    "words",
    [
        ["bench", "methods", "--controls", "-1"],
        ["model", "pretrain-tiny", "--steps", "0"],
        ["run", "demo", "--steps", "0"],
    ],
)
def test_a_number_out_of_range_is_an_argparse_error(capsys, words):
    with pytest.raises(SystemExit) as stop:
        main(words)
    assert (
        stop.value.code == 2 and f"argument {words[-2]}: {words[-1]} is" in capsys.readouterr().err
    )


def test_an_option_is_not_abbreviated(capsys):
    with pytest.raises(SystemExit):
        main(["compare", "demo", "--dry-run", "--seed", "1"])
    assert "unrecognized arguments: --seed" in capsys.readouterr().err


@pytest.mark.parametrize("command", LONG, ids=" ".join)
def test_a_dry_run_touches_nothing(capsys, tmp_path, command):
    assert main([*command, "demo", "--dry-run", f"trainer.run_dir={tmp_path / 'run'}"]) == 0
    assert capsys.readouterr().out
    assert not list(tmp_path.iterdir())


def test_a_path_with_a_sign_of_equality_is_no_override(capsys, tmp_path):
    folder = tmp_path / "gamma=0.9"
    folder.mkdir()
    (folder / "config.yaml").write_text("defaults: [demo]\n")
    assert (
        main(
            [
                "run",
                str(folder),
                "--stages",
                "ppo",
                "--dry-run",
                "~trainer.test_freq",
                "+trainer.save_freq=3",
            ]
        )
        == 0
    )
    assert "is valid" in capsys.readouterr().out
    assert (
        main(
            ["eval", "random", "--config", str(folder), "--dry-run", "--output", f"{folder}/a.json"]
        )
        == 0
    )
    assert f"and write {folder}/a.json" in capsys.readouterr().out


def test_places_that_are_chosen_are_used(capsys):
    places = [
        "generate.output_dir=my/data",
        "sft.trainer.default_local_dir=my/sft",
        "trainer.default_local_dir=my/ppo",
    ]
    assert main(["run", "demo", "--dry-run", *places]) == 0
    assert "spa would run in my/data, my/sft and my/ppo" in capsys.readouterr().out
    assert main(["run", "demo", "--method", "vanilla", "--dry-run", places[-1]]) == 0
    assert "vanilla would run in my/ppo" in capsys.readouterr().out
    assert main(["run", "demo", "--method", "vanilla", "--dry-run", "ctx_manager.mode=base"]) == 0
    assert "vanilla would run in runs/demo/vanilla/ppo" in capsys.readouterr().out


def test_hostile_text_in_an_error_is_only_text(capsys):
    assert main(["run", "\x1b[2Jnowhere\u202e.yaml"]) == 2
    said = capsys.readouterr().err
    assert "\\x1b[2Jnowhere\\u202e.yaml" in said and "\x1b" not in said


@pytest.mark.parametrize(
    ("chosen", "found"), [({}, "PASSIVE 0"), ({"OMP_WAIT_POLICY": "ACTIVE"}, "ACTIVE 0")]
)
def test_threads_that_wait_sleep_unless_the_user_says_otherwise(chosen, found):
    code = (
        "import os, sys\nfrom spa.cli import main\nmain(['--version'])\nassert 'torch' not in sys.modules\n"
        "print(os.environ['OMP_WAIT_POLICY'], os.environ['GOMP_SPINCOUNT'])"
    )
    clean = {
        name: value
        for name, value in os.environ.items()
        if name not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
    }
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=clean | chosen, check=True
    )
    assert done.stdout.splitlines()[-1] == found


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--greedy"], "--greedy belongs to another measurement; add --world-model"),
        (["--states", "3"], "--states belongs to another measurement; add --state-perplexity"),
        (["--world-model", "--k", "8"], "remove --k or --world-model"),
    ],
)
def test_an_option_of_another_measurement_is_refused(options, words):
    with pytest.raises(ConfigError, match=words):
        execute(["eval", "random", "--config", "tiny", *options])
