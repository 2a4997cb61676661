"""The node's figures in trackers."""
