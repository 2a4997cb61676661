"""Own groups: which tasks, their answers, and how these are scored."""
