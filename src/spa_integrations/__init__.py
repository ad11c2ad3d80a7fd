"""Integrations with other libraries: their games, exports of our environments, model conversion,
trackers and launchers. `spa` imports nothing from this package."""
