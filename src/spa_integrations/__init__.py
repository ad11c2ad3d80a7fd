"""Other libraries' games in, and ours out, beside `spa`, which imports none of it."""
