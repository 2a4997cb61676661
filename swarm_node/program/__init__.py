"""Ground of a program, a node's or a coordinator's: its terminal, log and private directory."""
