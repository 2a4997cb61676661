"""The node's own decoder: layers, cache, rotary positions, adapters, a base of four bits."""
