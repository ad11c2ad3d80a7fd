"""`answer_first`: thoughts and the answer, then the predicted state."""

from spa.formats.base import AfterThoughts, written_thoughts
from spa.formats.blocks import Span, blank_between


class AnswerFirst(AfterThoughts):
    """Format in which the prediction follows the answer."""

    name = "answer_first"
    last_block = "prediction"

    def write(
        self, observation: str, thoughts: str, prediction: str, answer: str, *, on: str = "\n"
    ) -> str:
        """Write the response with the prediction last."""
        foreseen = f"<prediction>{on}{prediction}{on}</prediction>"
        begun = written_thoughts(observation, thoughts, on)
        return f"{begun}</think><answer>{answer}</answer>{foreseen}"

    def _ends_well(self, text: str, answer: Span | None, prediction: Span | None) -> bool:
        if answer is None or prediction is None:
            return False
        return blank_between(text, answer[1], "</answer>", prediction[0], "<prediction>")


FORMAT = AnswerFirst()
