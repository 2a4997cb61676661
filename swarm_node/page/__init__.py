"""The page that a node shows its owner: static files, and access to their data."""
