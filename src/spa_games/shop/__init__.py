"""A shop of text pages: catalogue, search index, pages, goals, reward, and a local web server for
people."""
