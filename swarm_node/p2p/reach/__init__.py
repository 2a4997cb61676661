"""How a node is reached: directly, or through members that relay for it."""
