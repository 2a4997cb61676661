"""Checks before a start: machine, memory, settings, network and environment.

In: settings and facts of the machine.
Out: defaults, the demands that a plan is made for, findings and the first lines of `join`.
`start`, `cli` and `demo` import it. It imports `loops` (for its tasks), `home` and `figures`.
"""
