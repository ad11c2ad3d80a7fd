"""Sources of the examples that stage 1 writes and stage 2 trains on, one file each.

A file defines `SOURCE`, an object of a class like `spa.examples.source.ExampleSource`.
`spa.plugins.example_source` searches this folder and picks the source of a configuration by
`generate.policy`, which the source lists in `policies`. These files are imported when a
configuration is checked, so they import torch and transformers only where they use them.
"""
