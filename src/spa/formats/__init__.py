"""Response formats (`agent_proxy.response_format`), one file each: what a prompt asks for, how a
response is written, read, corrected and scored, and what the viewer shows of it.

A file defines `FORMAT`, an object of a class of `spa.formats.base`. No other file has to name a new
one: `spa.formats.registry` looks into this folder.
"""
