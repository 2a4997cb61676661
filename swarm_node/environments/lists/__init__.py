"""Lists of questions with reference answers: files, and datasets of a hub.

In: bytes that somebody else wrote.
Out: an `Environment` of rows that were read within limits, and split.
"""
