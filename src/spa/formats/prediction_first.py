"""`prediction_first`: the observation, thoughts, the predicted state, then the answer."""

from spa.formats.base import ResponseFormat


class PredictionFirst(ResponseFormat):
    """The response format of the SPA paper."""

    name = "prediction_first"


FORMAT = PredictionFirst()
