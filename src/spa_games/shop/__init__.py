"""A shop of text pages for WebShop: products, goals, search, pages, rewards, and a web server for
browsing it locally."""
