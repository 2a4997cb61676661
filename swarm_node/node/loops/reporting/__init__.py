"""What a node measures and tells of itself."""
