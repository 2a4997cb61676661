"""The control API on loopback, its client, and the metrics for Prometheus.

In: requests with the home's token; snapshots.
Out: JSON and metrics.
`start`, `cli` and `demo` import it. It imports `figures` alone.
"""
