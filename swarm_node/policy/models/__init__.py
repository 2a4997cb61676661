"""Models: shape, weights, tokens, and download."""
