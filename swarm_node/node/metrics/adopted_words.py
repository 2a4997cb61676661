"""Detection of words that this node's own answers adopt from peers' answers. Pure.

No reward shows words that a peer put around right answers. So each word and pair of words of own
answers is looked up. It was adopted if own answers did not have it at the start and peers' answers
had it first. A swarm learns by adopted words. But a word in a large share of all own answers,
whatever the task, is a habit that the owner should look at.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Iterable
from itertools import pairwise

from swarm_node.recent import Recent
from swarm_node.rollout import Provenance, VerifiedGroup

#: Own answers that make the start, and the latest ones that are compared with it.
START, WINDOW = 256, 256
#: The share of the last own answers with one adopted word that raises the alarm.
ALARM = 0.1
_MOST_WORDS = 1 << 15
_MOST_CHARS = 4096
#: A longer run of letters counts as several words, so the stored words are short.
_WORD = re.compile(r"[^\W\d]{1,64}|\d+|[^\w\s]")


def words(text: str) -> frozenset[str]:
    """Return the words of a text and its pairs of neighbours. All numbers count as one word."""
    terms = ["0" if word.isdigit() else word for word in _WORD.findall(text[:_MOST_CHARS])]
    pairs = (f"{first} {second}" for first, second in pairwise(terms))
    return frozenset((*terms, *pairs))


class AdoptedWords:
    """The words of own answers and of peers' answers; the oldest of them are forgotten."""

    def __init__(self) -> None:
        self._local_words: Recent[str, str] = Recent(_MOST_WORDS)
        self._peers: Recent[str, str] = Recent(_MOST_WORDS)
        self._last: deque[frozenset[str]] = deque()
        self._adopted_counts: Counter[str] = Counter()
        self._answers = 0

    def note(self, groups: Iterable[VerifiedGroup]) -> None:
        """Take in the groups of one update."""
        for group in groups:
            for completion in group.group.completions:
                text = "\n".join(completion.turn_texts)
                if group.provenance is Provenance.LOCAL:
                    self._say(words(text))
                else:
                    self._hear(words(text), group.author)

    def alarm(self) -> str:
        """A sentence on the word that is adopted most, "" if none is in many answers."""
        if len(self._last) < WINDOW:
            return ""
        for word, count in self._adopted_counts.most_common(1):
            if count >= ALARM * WINDOW:
                share, author = count / WINDOW, self._peers.get(word, "a peer")
                return f"{share:.0%} of local completions have {word!r}, which {author} used first"
        return ""

    def _say(self, terms: frozenset[str]) -> None:
        self._answers += 1
        starting = self._answers <= START
        adopted_terms = frozenset(
            word
            for word in terms
            if not starting and word in self._peers and word not in self._local_words
        )
        for word in terms - adopted_terms:
            self._local_words[word] = ""
        self._last.append(adopted_terms)
        self._adopted_counts.update(adopted_terms)
        if len(self._last) > WINDOW:
            self._adopted_counts -= Counter(self._last.popleft())

    def _hear(self, terms: frozenset[str], author: str) -> None:
        for word in terms:
            self._peers[word] = self._peers.get(word, author)
