"""A package of one's own that adds a game, an engine, a method and a command to spa.

pip install -e examples/plugin
spa env list
spa coins odds --flips 3
"""
