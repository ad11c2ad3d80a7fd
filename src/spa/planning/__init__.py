"""Planners, one file each, and the successor states from which examples of written searches are
made. Each planner's file defines `PLANNER`, a pair: the value of `imagine.proposals` that selects
the planner, and the planner's class."""
