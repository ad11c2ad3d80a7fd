"""Planners, one file each, and the dynamics of written searches. A planner's file defines
`PLANNER`: the value of `imagine.proposals` and the class."""
