"""Response formats (`agent_proxy.response_format`), one file each. A format defines what a prompt
asks for, how a response is written, parsed, corrected and scored, and what the viewer shows of it.

A file defines `FORMAT`, an instance of a class from `spa.formats.base`. A new file needs no
registration: `spa.plugins.response_formats` scans this folder.
"""
