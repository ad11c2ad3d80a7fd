"""Games of other libraries for `spa`, and exports of our environments. `spa` imports nothing from
this package."""
