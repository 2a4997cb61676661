"""Answers of models: where a text has its final answer, and whether that is the right one."""
