"""`no_prediction`: the observation, thoughts and the answer."""

from spa.formats.base import AfterThoughts, written_thoughts
from spa.formats.blocks import Span


class NoPrediction(AfterThoughts):
    """Responses say what is, not what will be."""

    name = "no_prediction"
    predicts = False

    def write(
        self, observation: str, thoughts: str, prediction: str, answer: str, *, on: str = "\n"
    ) -> str:
        """Without the prediction."""
        return f"{written_thoughts(observation, thoughts, on)}</think><answer>{answer}</answer>"

    def _ends_well(self, text: str, answer: Span | None, prediction: Span | None) -> bool:
        return "<prediction>" not in text and "</prediction>" not in text


FORMAT = NoPrediction()
