"""The task of the training demo: notes that say which box to open. Pure.

A note has a letter, a to j. The box to open is the letter's place in the alphabet: a is 1, b is 2 … j is 0.
In it lies another note. Nobody tells the model the rule: it is rewarded for the right box.
"""

import random
import string
from collections.abc import Iterator

LETTERS = string.ascii_lowercase[:10]
NUM_CALLS = 2


FORM = "z7x2q0v5y9m4"
"""Letters that are on no note, and digits: they show a language model what an answer looks like."""

BoxesTask = dict[str, str]
"""`letter`: on the first note; `boxes`: the letters on the notes in the boxes 0 to 9; `form`: as above."""


def tasks(number: int, seed: int, form: str = "") -> Iterator[BoxesTask]:
    """All letters equally often, in random order."""
    rng = random.Random(seed)  # noqa: S311  reproducible, not secret
    letters: list[str] = []
    for _ in range(number):
        if not letters:
            letters = list(LETTERS)
            rng.shuffle(letters)
        yield {"letter": letters.pop(), "boxes": "".join(rng.choices(LETTERS, k=10)), "form": form}


def examples(task: BoxesTask) -> Iterator[tuple[str, str]]:
    """A letter and a digit each, to begin a conversation with."""
    form = task["form"]
    return zip(form[::2], form[1::2], strict=True)


def right_box(letter: str) -> str:
    return str((LETTERS.index(letter) + 1) % 10)


def note_in(box: str, task: BoxesTask) -> str:
    """What lies in the box that was said; where none was, somebody opens the first."""
    is_box = len(box) == 1 and box in string.digits
    return task["boxes"][int(box) if is_box else 0]
