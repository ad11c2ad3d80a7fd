"""Planners, one file each, and the dynamics of written searches. Each planner's file defines
`PLANNER`: the value of `imagine.proposals` that selects it, and its class."""
