"""Ground of a program, a node's or a coordinator's: its terminal, caches, log and own directory."""
