"""What a model is: its shape, weights, tokens, and where it comes from."""
