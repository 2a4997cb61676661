"""The control API on loopback, its client, and the metrics for Prometheus.

In: requests with the home's token; snapshots; answers of the newest policy.
Out: JSON, metrics and streams of answers.
`start`, `library`, `cli` and `demo` import it. It imports `figures`, and the queue of guests of
`loops`.
"""
