"""The rule by which a text belongs to training or is held out."""

from __future__ import annotations

#: The number of the rule; 0 stands for the time when tasks were held out by their seed alone.
SPLIT = 1
