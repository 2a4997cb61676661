"""Views of a terminal: settings, status, peers, samples and plans as tables and lines.

In: snapshots and rows.
Out: renderables of rich.
`main` and `verbs` import it. It imports no other room of `cli`.
"""
