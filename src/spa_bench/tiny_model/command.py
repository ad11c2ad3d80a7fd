"""`spa model pretrain-tiny`: pretrain the bundled model."""

import argparse
from pathlib import Path

from spa.commands.arguments import positive_number, say, whole_number


def pretrain_tiny_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `spa model pretrain-tiny` to `parser`."""
    parser.add_argument(
        "folder",
        nargs="?",
        default="runs/pretrained-tiny",
        metavar="FOLDER",
        help="output folder (default: runs/pretrained-tiny)",
    )
    parser.add_argument(
        "--seed",
        type=whole_number,
        default=0,
        metavar="N",
        help="seed of the initial weights and of the documents (default: 0)",
    )
    parser.add_argument(
        "--steps",
        type=positive_number,
        metavar="N",
        help="number of training steps (default: as many as the bundled model has)",
    )


def pretrain_tiny(options: argparse.Namespace) -> int:
    """Pretrain the bundled model and print its path. Returns the exit status."""
    from spa_bench.tiny_model.pretrain import STEPS
    from spa_bench.tiny_model.pretrain import pretrain_tiny as recipe

    return say(
        [
            f"The model is in {recipe(Path(options.folder), seed=options.seed, steps=options.steps or STEPS)}."
        ]
    )
