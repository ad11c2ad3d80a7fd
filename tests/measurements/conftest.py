from helpers.untrained import untrained_model

__all__ = ["untrained_model"]
