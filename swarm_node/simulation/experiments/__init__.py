"""Comparisons over seeds, each resumable."""
