"""Planners, one file each, and sources of successor states for searches that responses write out.
Each planner's file defines `PLANNER`: the value of `imagine.proposals` that selects it, and its
class."""
