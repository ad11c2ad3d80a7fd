"""The records of our commands, which pyproject.toml registers. Imports nothing heavy."""

from spa.commands.table import Command

serve = Command(
    summary="let OpenEnv clients play an environment",
    target="spa_integrations.export.command:serve",
    example="spa env serve FrozenLake --port 8000",
)
import_gguf = Command(
    summary="turn a GGUF file into a model folder",
    target="spa_integrations.gguf.command:import_gguf",
    example="spa model import-gguf smollm2",
)
