"""python -m SPA_agent.generate_sft_data --config-name NAME [key=value ...]: the original's stage 1.

Run it in `scripts/original`, or with that folder in PYTHONPATH. As in the original, data go to
`sftdata/NAME-SIZE-RENDER_MODE` unless OUTPUT_DIR names another folder, and MODEL, RENDER_MODE, MODE and BT_NUM count.
"""

import argparse
import os
import sys
from collections.abc import Mapping, Sequence

from spa.__main__ import run

SIZES = ("0.5B", "1.5B", "3B")


def command(arguments: Sequence[str], variables: Mapping[str, str]) -> list[str]:
    """The arguments of `spa` that do the same."""
    parser = argparse.ArgumentParser(prog="generate_sft_data", description=__doc__)
    parser.add_argument("--config-name", required=True, metavar="NAME")
    options, overrides = parser.parse_known_args(arguments)
    model = variables.get("MODEL", "1.5B")
    render_mode = variables.get("RENDER_MODE", "text_with_coordinates")
    output = variables.get("OUTPUT_DIR", f"sftdata/{options.config_name}-{model}-{render_mode}")
    settings = [
        f"model_path={f'Qwen/Qwen2.5-{model}-Instruct' if model in SIZES else model}",
        f"render_mode={render_mode}",
        f"generate.output_dir={output}",
    ]
    for name, key in (("MODE", "ctx_manager.mode"), ("BT_NUM", "generate.num_batches")):
        settings += [f"{key}={variables[name]}"] if name in variables else []
    return ["run", options.config_name, "--stages", "selfplay", *settings, *overrides]


if __name__ == "__main__":
    sys.argv[1:] = command(sys.argv[1:], os.environ)
    run()
