"""What is trained on. Pure."""
