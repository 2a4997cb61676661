"""Experience: the groups and rows that updates are trained on. Pure."""
