"""The update: gradient, optimizer, checkpoint, and its process."""
