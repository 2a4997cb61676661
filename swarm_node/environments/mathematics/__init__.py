"""Reads answers as people write mathematics, and compares them."""
