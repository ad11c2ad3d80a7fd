"""Bridges to games of other libraries, exports of our environments, model conversion, trackers and
launchers. `spa` imports nothing from this package."""
