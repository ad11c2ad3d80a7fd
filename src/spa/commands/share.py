"""`spa push` and `spa pull`: data sets and checkpoints to the Hugging Face Hub and back."""

import argparse
from pathlib import Path

from spa.run.console import write_out


def push(args: list[str]) -> int:
    """`spa push FOLDER OWNER/NAME`. Raises SpaError."""
    parser = argparse.ArgumentParser(
        prog="spa push",
        description="Share a data set or a checkpoint on the Hugging Face Hub, with a card (once: `hf auth login`).",
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="a run's data folder, or a global_step_N folder")
    parser.add_argument("name", metavar="OWNER/NAME", help="its name on the Hub")
    parser.add_argument("--critic", action="store_true", help="send the critic of a PPO checkpoint too")
    parser.add_argument("--public", action="store_true", help="a new repository is public; the default is private")
    parser.add_argument("--dry-run", action="store_true", help="show the files and the card, send nothing")
    options = parser.parse_args(args)
    from spa.recipes import share

    upload = share.pack(options.folder, options.name, critic=options.critic)
    lines = [f"{upload.kind} {options.name}: {len(upload.files)} files and a card, {upload.size / 1e6:.1f} MB"]
    if options.dry_run:
        lines += [f"  {target}  {path.stat().st_size:,} bytes" for target, path in upload.files.items()]
        lines += ["", "README.md", "", upload.card, "Nothing was sent."]
    else:
        lines.append(f"sent: {share.push(upload, options.name, private=not options.public)}")
    write_out("\n".join(lines) + "\n")
    return 0


def pull(args: list[str]) -> int:
    """`spa pull OWNER/NAME [FOLDER]`. Raises SpaError."""
    parser = argparse.ArgumentParser(
        prog="spa pull", description="Fetch a data set or a model from the Hugging Face Hub into a folder."
    )
    parser.add_argument("name", metavar="OWNER/NAME", help="its name on the Hub")
    parser.add_argument("folder", type=Path, nargs="?", metavar="FOLDER", help="default: the name without its owner")
    options = parser.parse_args(args)
    from spa.recipes import share

    folder = options.folder or Path(options.name.rpartition("/")[2])
    kind = share.pull(options.name, folder)
    use = f"model_path={folder}" if kind == "model" else f"data.train_files={folder} data.val_files={folder}"
    write_out(f"{kind} in {folder}; use it with {use}\n")
    return 0
