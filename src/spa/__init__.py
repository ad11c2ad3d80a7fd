"""spa: agents that learn how their world works before they learn to win in it."""

__version__ = "0.1.0"
