"""`search_marked`: the breadth-first search of `search`, with a word for new states:

    31: Left30 new Down31 seen Right32 new Up21 new ; 30 32 21

In `search`, a move to a new state has no status, so a model has to notice that a word is missing
before it lists the state as open. Here the word `new` follows the state.
"""

from spa.formats.search import NEW, BreadthFirst, OpenStates


class MarkedStates(OpenStates):
    """The open states of a breadth-first search. Moves to new states have the status `new`."""

    def status(self, key: str, after: str, outcome: str) -> str:
        """Return the status of a move: the outcome, `seen`, or `new`."""
        return super().status(key, after, outcome) or NEW


class MarkedSearch(BreadthFirst):
    """Format whose thoughts are a breadth-first search that names new states."""

    name = "search_marked"
    open_states = MarkedStates


FORMAT = MarkedSearch()
