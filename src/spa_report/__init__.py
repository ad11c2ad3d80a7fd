FORMATS = ("html", "md", "png")
"""Formats of a report."""
