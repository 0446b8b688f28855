"""The account: what was published against what SQL shows, record by record."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace.cli.demo.workload import ExpectedAttempt
from headrace.schemas.records import AttemptEvent, Record, Reward, Span

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

Place = tuple[str, int, int]
_MAX_WORDS = 20


@dataclass
class Published:
    """What went in: distinct spans, rewards and attempts by their ids, poison by its place."""

    attempts: set[str] = field(default_factory=set)
    spans: set[tuple[str, str]] = field(default_factory=set)
    rewards: set[str] = field(default_factory=set)
    poison: set[Place] = field(default_factory=set)

    def add(self, record: Record) -> None:
        if isinstance(record, AttemptEvent):
            self.attempts.add(record.attempt_id)
        elif isinstance(record, Span):
            self.spans.add((record.attempt_id, record.span_id))
        elif isinstance(record, Reward):
            self.rewards.add(record.reward_id)


@dataclass
class Account:
    """`lost` and `duplicated` count records; `wrong` are verdicts or contents that differ."""

    attempts: int = 0
    transitions: int = 0
    incomplete: int = 0
    dead_letters: int = 0
    lost: int = 0
    duplicated: int = 0
    wrong: int = 0
    words: list[str] = field(default_factory=list)

    @property
    def is_clean(self) -> bool:
        return not (self.lost or self.duplicated or self.wrong)

    def compare(self, what: str, published: set[object], found: Counter[object]) -> None:
        """Count what is missing, what is there twice, and what nobody published."""
        missing = published - found.keys()
        foreign = found.keys() - published
        twice = sum(count - 1 for count in found.values())
        self.lost += len(missing)
        self.duplicated += twice
        self.wrong += len(foreign)
        for word, items in (("lost", missing), ("not published", foreign)):
            if items:
                self.say(f"{len(items)} {what} {word}, such as {min(items, key=str)}")
        if twice:
            self.say(f"{twice} {what} too many")

    def say(self, words: str) -> None:
        if len(self.words) < _MAX_WORDS:
            self.words.append(words)


def take_account(client: "Client", published: Published, expected: dict[str, ExpectedAttempt]) -> Account:
    """Read all that the public views hold, and compare."""
    account = Account()
    verdicts = client.query("SELECT attempt_id, reason FROM trajectories").result_rows
    account.attempts = len(verdicts)
    account.incomplete = sum(1 for _, reason in verdicts if reason == "missing_sequence_ids")
    account.compare("attempts", set(published.attempts), Counter(attempt_id for attempt_id, _ in verdicts))
    for attempt_id, reason in verdicts:
        if attempt_id in expected and reason != expected[attempt_id].reason:
            account.wrong += 1
            account.say(f"attempt {attempt_id}: {reason}, and {expected[attempt_id].reason} is right")
    spans = client.query("SELECT attempt_id, span_id FROM spans").result_rows
    account.compare("spans", set(published.spans), Counter(map(tuple, spans)))
    rewards = client.query("SELECT reward_id FROM rewards").result_rows
    account.compare("rewards", set(published.rewards), Counter(reward_id for (reward_id,) in rewards))
    letters = client.query("SELECT topic, partition, offset FROM dead_letters").result_rows
    account.dead_letters = len(letters)
    account.compare("dead letters", set(published.poison), Counter(map(tuple, letters)))
    _compare_transitions(client, account, expected)
    return account


def _compare_transitions(client: "Client", account: Account, expected: dict[str, ExpectedAttempt]) -> None:
    """Every transition of the generated attempts, down to the last token id and logprob."""
    rows = client.query(
        "SELECT attempt_id, sequence_id, prompt_token_ids, response_token_ids, response_logprobs, reward "
        "FROM transitions ORDER BY attempt_id, step"
    ).result_rows
    account.transitions = len(rows)
    found: dict[object, object] = {}
    places: Counter[object] = Counter()
    for attempt_id, sequence_id, prompt, response, logprobs, reward in rows:
        if attempt_id in expected:
            places[attempt_id, sequence_id] += 1
            found[attempt_id, sequence_id] = (tuple(prompt), tuple(response), tuple(logprobs), reward)
    wanted = dict(_wanted(expected))
    account.compare("transitions", set(wanted), places)
    for place, content in wanted.items():
        if place in found and found[place] != content:
            account.wrong += 1
            account.say(f"the transition at {place} differs from what the model generated")


def _wanted(expected: dict[str, ExpectedAttempt]) -> Iterator[tuple[object, object]]:
    for attempt in expected.values():
        for step in attempt.transitions:
            place = (attempt.attempt_id, step.sequence_id)
            yield place, (step.prompt, step.response, step.logprobs, step.reward)
