"""Response formats (`agent_proxy.response_format`), one file each. A format defines which response
a prompt asks for, how that response is written, parsed, corrected and scored, and what the viewer
shows of it.

A file defines `FORMAT`, an instance of a class from `spa.formats.base`. A new file needs no
registration: `spa.plugins.response_formats` scans this folder.
"""
