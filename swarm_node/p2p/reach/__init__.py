"""How a node is reached: directly, as members found when they dialled it, or through relays."""
