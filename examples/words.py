"""Writes 400 questions in the wording of `drills`, which the shipped model `tiny` knows.

Run `python words.py > words.jsonl`. Other wordings need a model that reads English.
"""

import json
import random

LETTERS = "abcdefghijklmnopqrstuvwxyz"


def rows(count: int = 400, seed: int = 0) -> list[dict[str, str]]:
    """`count` questions, each once, with their answers."""
    rng, words = random.Random(seed), dict[str, None]()
    while len(words) < count:
        words["".join(rng.choice(LETTERS) for _ in range(3))] = None
    return [
        {"question": f"Spell {word} backward. End with a full stop.", "answer": f"{word[::-1]}."}
        for word in words
    ]


if __name__ == "__main__":
    for row in rows():
        print(json.dumps(row))
