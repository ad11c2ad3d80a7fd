"""Games of other libraries for `spa`, and exports of ours. `spa` imports none of it."""
