"""How nodes behind NAT are reached."""
