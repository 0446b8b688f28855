"""What the resources topic means, whatever was published at once and whatever compaction has taken."""

from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.builders import CODEC, TIME

from headrace.schemas.records import ResourceVersion
from headrace.streams.client.resource_versions import (
    RESTORED,
    ResourceVersions,
    Taken,
    UnknownResourceError,
)

COPY = ((RESTORED, b"1"),)


class Entry(NamedTuple):
    key: bytes
    value: bytes
    headers: tuple[tuple[str, bytes], ...] = ()


def entry(version: int, content: str = "", *, name: str = "prompt", restored: bool = False) -> Entry:
    record = ResourceVersion(name=name, version=version, kind="prompt", content=content, time=TIME)
    return Entry(record.key, CODEC.encode(record, "resources"), COPY if restored else ())


def folded(log: list[Entry]) -> ResourceVersions:
    versions = ResourceVersions(CODEC)
    for each in log:
        versions.take(each.value, each.headers)
    return versions


def contents(versions: ResourceVersions, name: str = "prompt") -> dict[int, str | None]:
    return {number: versions.pinned(name, number).content for number in versions.versions_of(name)}


@pytest.mark.parametrize(
    ("log", "taken", "expected"),
    [
        ([entry(1, "a"), entry(2, "b")], ["newest", "newest"], {1: "a", 2: "b"}),
        ([entry(0, "a")], ["newest"], {0: "a"}),
        ([entry(7, "a"), entry(9, "b")], ["newest", "newest"], {7: "a", 9: "b"}),
        ([entry(2, "a"), entry(1, "b")], ["newest", "lower"], {2: "a"}),
        ([entry(1, "a"), entry(1, "a")], ["newest", "known"], {1: "a"}),
        ([entry(1, "a"), entry(1, "b")], ["newest", "conflict"], {1: "a"}),
        (
            [entry(1, "a"), entry(1, "b"), entry(1, "a", restored=True)],
            ["newest", "conflict", "known"],
            {1: "a"},
        ),
        ([entry(1, "b"), entry(1, "a", restored=True)], ["newest", "restored"], {1: "a"}),
        ([entry(2, "c"), entry(1, "a", restored=True)], ["newest", "restored"], {1: "a", 2: "c"}),
        ([entry(1, "a", restored=True)], ["newest"], {1: "a"}),
        ([entry(1, "a"), Entry(b"x", b"no record")], ["newest", "bad"], {1: "a"}),
    ],
    ids=[
        "one after the other",
        "from zero",
        "with gaps",
        "a lower one",
        "the same again",
        "another of the same number",
        "and put right",
        "the first was compacted",
        "moved up by compaction",
        "only the copy is left",
        "no record",
    ],
)
def test_versions_only_go_up_and_the_first_counts(
    log: list[Entry], taken: list[Taken], expected: dict[int, str]
) -> None:
    """G9."""
    versions = ResourceVersions(CODEC)
    assert [versions.take(each.value, each.headers).taken for each in log] == taken
    assert contents(versions) == expected
    assert versions.newest()["prompt"].content == expected[max(expected)]


def compacted(log: list[Entry], end: int) -> list[Entry]:
    """As the broker's cleaner leaves it: of the records before `end`, the last of each key."""
    last = {each.key: offset for offset, each in enumerate(log[:end])}
    return [each for offset, each in enumerate(log) if offset >= end or last[each.key] == offset]


@given(
    rivals=st.lists(st.integers(1, 4), max_size=8),
    ends=st.lists(st.floats(0, 1), max_size=4),
)
def test_compaction_changes_nothing_for_who_reads_later(rivals: list[int], ends: list[float]) -> None:
    """Some publish at once, the losers put the first back and go on: each version stays what it was."""
    log: list[Entry] = []
    expected: dict[int, str | None] = {}
    for version, num_rivals in enumerate(rivals, 1):
        log += [entry(version, f"{version} by {rival}") for rival in range(num_rivals)]
        expected[version] = f"{version} by 0"
        log += [Entry(key, value, COPY) for key, value in folded(log).covered()]
        assert folded(log).covered() == []
    for end in ends:
        log = compacted(log, round(end * len(log)))
    if expected:
        assert contents(folded(log)) == expected
        # Another failure of a reader's: it reads everything once more.
        versions = folded(log)
        for each in log:
            versions.take(each.value, each.headers)
        assert contents(versions) == expected


def test_what_does_not_exist_is_said_with_what_does() -> None:
    versions = folded([entry(1), entry(4), entry(2, name="other")])
    with pytest.raises(UnknownResourceError, match="prompt has no version 3: of its 2 the newest is 4"):
        versions.pinned("prompt", 3)
    with pytest.raises(UnknownResourceError, match="no resource 'nothing'; there is other, prompt"):
        versions.pinned("nothing", 1)
    with pytest.raises(UnknownResourceError, match="none at all"):
        folded([]).versions_of("prompt")
