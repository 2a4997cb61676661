"""Company: peers that are met, dialled, introduced and judged by what they send."""
