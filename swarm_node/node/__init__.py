"""One running node: its loops, what they are built of, and what it shows."""
