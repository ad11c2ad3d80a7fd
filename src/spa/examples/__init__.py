"""Sources of the examples that stage 1 writes and stage 2 trains on, one file each.

A file defines `SOURCE`, an object of a class like `spa.examples.source.ExampleSource`.
`spa.plugins.example_source` searches this folder. It picks the first source, in ascending `order`,
whose `makes` accepts the configuration. These files are imported when a configuration is checked,
so they import torch and transformers only where they use them.
"""
