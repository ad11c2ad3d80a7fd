"""Planners, one file each, which defines `PLANNER`: the value of `imagine.proposals` and its class; and
the dynamics of written searches."""
