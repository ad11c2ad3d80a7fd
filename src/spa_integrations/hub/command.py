"""`spa model push|pull` and `spa data push|pull`: upload and download checkpoints and datasets on
the Hugging Face Hub."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from spa.run.console import write_out

if TYPE_CHECKING:
    from spa.models.hub import Kind


def push_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `spa model push` and `spa data push`."""
    parser.add_argument(
        "folder", type=Path, metavar="FOLDER", help="data folder or global_step_N folder of a run"
    )
    parser.add_argument(
        "name", metavar="OWNER/NAME", help="name of the repository on the Hugging Face Hub"
    )
    parser.add_argument(
        "--critic", action="store_true", help="also upload the critic of a PPO checkpoint"
    )
    parser.add_argument(
        "--public", action="store_true", help="make a new repository public (default: private)"
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="show the files and the model or data card, and upload nothing",
    )


def push(options: argparse.Namespace) -> int:
    """Upload a folder with a card, or show what would be uploaded. The user must have logged in
    with `hf auth login`. Raises SpaError for errors that the user can fix."""
    from spa_integrations.hub import share

    upload = share.pack(options.folder, options.name, critic=options.critic)
    lines = [
        f"{upload.kind} {options.name}: {len(upload.files)} files and a README.md, {upload.size / 1e6:.1f} MB"
    ]
    if options.dry_run:
        lines += [
            f"  {target}  {path.stat().st_size:,} bytes" for target, path in upload.files.items()
        ]
        lines += ["", "README.md", "", upload.card, "Nothing was uploaded."]
    else:
        lines.append(f"Uploaded to {share.push(upload, options.name, private=not options.public)}.")
    write_out("\n".join(lines) + "\n")
    return 0


def pull_model_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `spa model pull` and `spa data pull`."""
    parser.add_argument(
        "name", metavar="OWNER/NAME", help="name of the repository on the Hugging Face Hub"
    )
    parser.add_argument(
        "folder",
        type=Path,
        nargs="?",
        metavar="FOLDER",
        help="output folder (default: NAME in the working directory)",
    )


pull_data_arguments = pull_model_arguments


def pull_model(options: argparse.Namespace) -> int:
    """Download a model, and print how to use it. Raises SpaError for errors that the user can
    fix."""
    return _pull(options, "model", "model_path")


def pull_data(options: argparse.Namespace) -> int:
    """Download a dataset, and print how to use it. Raises SpaError for errors that the user can
    fix."""
    return _pull(options, "dataset", "data.train_files")


def _pull(options: argparse.Namespace, kind: "Kind", key: str) -> int:
    from spa_integrations.hub import share

    # The default folder is the name without its owner, as in `git clone`.
    folder = options.folder or Path(options.name.rpartition("/")[2])
    share.pull(options.name, folder, kind)
    write_out(f"Downloaded the {kind} to {folder}. Use the {kind} with {key}={folder}.\n")
    return 0
