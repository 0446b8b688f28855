"""Tally: what should be there against what is, counted."""

from collections import Counter
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field

_MAX_WORDS = 20


@dataclass
class Tally:
    """`lost` and `duplicated` count records; `wrong` is what nobody published, or what contradicts itself."""

    lost: int = 0
    duplicated: int = 0
    wrong: int = 0
    words: list[str] = field(default_factory=list)
    """The first of what was found, for people."""

    @property
    def is_clean(self) -> bool:
        return not (self.lost or self.duplicated or self.wrong)

    def compare(self, what: str, wanted: Iterable[Hashable], found: Iterable[Hashable]) -> None:
        """The same keys, each once in what is found."""
        published, counts = set(wanted), Counter(found)
        missing = published - counts.keys()
        foreign = counts.keys() - published
        twice = sum(count - 1 for count in counts.values())
        self.lost += len(missing)
        self.duplicated += twice
        self.wrong += len(foreign)
        for word, items in (("lost", missing), ("not published", foreign)):
            if items:
                self.say(f"{len(items)} {what} {word}, such as {min(items, key=str)}")
        if twice:
            self.say(f"{twice} {what} too many")

    def differ(self, words: str) -> None:
        self.wrong += 1
        self.say(words)

    def say(self, words: str) -> None:
        if len(self.words) < _MAX_WORDS:
            self.words.append(words)
