"""Connectivity: peers that are met, dialled, introduced and weighed by what they send."""
