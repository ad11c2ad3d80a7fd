"""`search_paths`: the search of `search_marked`, with the path after each open state:

    31: Left30 new Down31 seen Right32 new Up21 new ; 30 Left 32 Right 21 Up
    30 Left: Left30 seen Down30 seen Right31 seen Up20 new ; 32 Right 21 Up 20 Left Up

A line begins with the first state and path of the list before. So a model copies them, and does not
have to find the line in which the state was found.
"""

from spa.formats.search_marked import MarkedSearch, MarkedStates


class PathStates(MarkedStates):
    """The open states of a breadth-first search, listed with their paths."""

    def listed(self) -> tuple[str, ...]:
        """Return the open states in order, each followed by the actions that lead to it."""
        return tuple(word for key in super().listed() for word in (key, *self.paths[key]))


class PathSearch(MarkedSearch):
    """Format whose thoughts are a breadth-first search that names new states and lists the paths of
    open states."""

    name = "search_paths"
    open_states = PathStates


FORMAT = PathSearch()
