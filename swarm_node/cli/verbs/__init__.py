"""The commands of `swarm-node` that have options or steps of their own, one module each.

In: options as typed.
Out: text or JSON on standard output, or an error.
`main` imports it. It imports `views`, `options` and `home`.
"""
