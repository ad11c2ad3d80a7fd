FORMATS = ("html", "md", "png")
"""Of a report."""
