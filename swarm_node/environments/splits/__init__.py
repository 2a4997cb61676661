"""The split into training and held-out prompts, and the seeds and choices that it rests on. Pure.

In: names of tasks, and texts.
Out: seeds, sides of the split, and counts of what is on both.
"""
