FORMATS = ("html", "md", "png")
"""Output formats of `spa report`."""
