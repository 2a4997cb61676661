"""The page that a node shows its owner: static files, and who may look at what they show."""
