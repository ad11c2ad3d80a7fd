"""Sources of the examples that stage 1 writes and stage 2 trains on, one file each.

A file defines `SOURCE`, an object of a class like `spa.examples.source.ExampleSource`.
`spa.plugins.example_source` looks into this folder and picks the source of a configuration, by a name
of `generate.policy` that the source holds in `policies`. These files are read when a configuration is
checked, so they import what loads torch or transformers only where it is used.
"""
