"""`no_prediction`: the observation, thoughts and the answer."""

from typing import Any

from spa.config.problems import Problems
from spa.config.schema import Config
from spa.errors import ConfigError
from spa.formats.base import AfterThoughts, written_thoughts
from spa.formats.blocks import Span

OF_PREDICTIONS = (
    "prediction_exact",
    "copy_exact",
    "prediction_em",
    "pred_unit_acc",
    "changed_acc",
    "changed_f1",
)
"""Names of accuracy metrics that need predictions, without the prefix before "/"."""


class NoPrediction(AfterThoughts):
    """Format whose responses describe the current state but do not predict the next one."""

    name = "no_prediction"
    predicts = False

    def check(self, cfg: Config, problems: Problems) -> None:
        """Also add a problem for every setting that needs predictions."""
        super().check(cfg, problems)
        reward = cfg.agent_proxy.world_model_reward
        for path, wanted in (
            ("agent_proxy.world_model_reward.prediction", reward.prediction > 0),
            ("generate.shuffle_next_states", cfg.generate.shuffle_next_states),
            ("generate.states", cfg.generate.states == "model"),
            ("gate.enable", cfg.gate.enable),
            ("generate.imagine.n", cfg.generate.imagine.reads_predictions),
            ("imagine.n", cfg.imagine.reads_predictions),
        ):
            if wanted:
                problems.add(
                    path,
                    f"this setting needs predictions, but agent_proxy.response_format={self.name} "
                    "leaves out predictions; choose another response format",
                )

    def require_predictions(self) -> None:
        """Raise ConfigError, because responses contain no predictions."""
        raise ConfigError(
            f"agent_proxy.response_format={self.name} has no predictions to measure; "
            "choose a format with a prediction block"
        )

    def measured(self, figures: dict[str, Any]) -> dict[str, Any]:
        """Return only the metrics that need no predictions, such as the accuracy of
        observations."""
        return {
            name: value
            for name, value in figures.items()
            if name.rpartition("/")[2] not in OF_PREDICTIONS
        }

    def write(
        self, observation: str, thoughts: str, prediction: str, answer: str, *, on: str = "\n"
    ) -> str:
        """Write the response without the prediction."""
        return f"{written_thoughts(observation, thoughts, on)}</think><answer>{answer}</answer>"

    def _ends_well(self, text: str, answer: Span | None, prediction: Span | None) -> bool:
        return "<prediction>" not in text and "</prediction>" not in text


FORMAT = NoPrediction()
