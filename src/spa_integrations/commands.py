"""The command records that pyproject.toml registers. Imports no slow module."""

from spa.commands.table import Command

serve = Command(
    summary="serve an environment to OpenEnv clients",
    target="spa_integrations.export.command:serve",
    example="spa env serve FrozenLake --port 8000",
)
import_gguf = Command(
    summary="convert a GGUF file into a model folder",
    target="spa_integrations.gguf.command:import_gguf",
    example="spa model import-gguf smollm2",
)
model_pull = Command(
    summary="download a model from the Hugging Face Hub",
    target="spa_integrations.hub.command:pull_model",
    example="spa model pull me/my-agent",
)
model_push = Command(
    summary="upload a checkpoint to the Hugging Face Hub",
    target="spa_integrations.hub.command:push",
    example="spa model push runs/demo/ppo/global_step_20 me/my-agent --dry-run",
    resumes=True,
)
data_pull = Command(
    summary="download a data set from the Hugging Face Hub",
    target="spa_integrations.hub.command:pull_data",
    example="spa data pull me/my-data",
)
data_push = Command(
    summary="upload a data set to the Hugging Face Hub",
    target="spa_integrations.hub.command:push",
    example="spa data push runs/demo/data me/my-data --dry-run",
    resumes=True,
)
