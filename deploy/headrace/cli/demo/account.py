"""The account: what was published against what SQL shows, record by record."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace.cli.demo.script import Script
from headrace.cli.demo.tally import Tally
from headrace.schemas.records import AttemptEvent, Record, Reward, Span

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

Place = tuple[str, int, int]
Scripts = dict[tuple[str, int], Script]
"""By rollout id and number of the attempt."""


@dataclass
class Published:
    """What went in: recorded traces by their ids, played attempts by their scripts, poison by its place."""

    attempts: set[Hashable] = field(default_factory=set)
    spans: set[Hashable] = field(default_factory=set)
    rewards: set[Hashable] = field(default_factory=set)
    scripts: Scripts = field(default_factory=dict)
    poison: set[Hashable] = field(default_factory=set)

    def add(self, record: Record) -> None:
        """A record of a trace."""
        if isinstance(record, AttemptEvent):
            self.attempts.add(record.attempt_id)
        elif isinstance(record, Span):
            self.spans.add((record.attempt_id, record.sequence_id))
        elif isinstance(record, Reward):
            self.rewards.add((record.attempt_id, record.sequence_id))

    @property
    def num_attempts(self) -> int:
        return len(self.attempts) + len(self.scripts)


@dataclass
class Account(Tally):
    """`wrong` are verdicts or contents that differ, too."""

    attempts: int = 0
    transitions: int = 0
    incomplete: int = 0
    dead_letters: int = 0


def take_account(client: "Client", published: Published) -> Account:
    """Read all that the public views hold, and compare."""
    account = Account()
    scripts = published.scripts
    rollouts = {rollout_id for rollout_id, _ in scripts}
    verdicts = client.query("SELECT rollout_id, attempt, attempt_id, reason FROM trajectories").result_rows
    numbers = {attempt_id: (rollout_id, number) for rollout_id, number, attempt_id, _ in verdicts}

    def name(attempt_id: str) -> Hashable:
        """Of a played attempt its rollout and number, since its id was given by the runner."""
        found = numbers.get(attempt_id)
        return found if found is not None and found[0] in rollouts else attempt_id

    account.attempts = len(verdicts)
    account.incomplete = sum(1 for *_, reason in verdicts if reason == "missing_sequence_ids")
    account.compare("attempts", published.attempts | set(scripts), (name(row[2]) for row in verdicts))
    for rollout_id, number, _, reason in verdicts:
        plan = scripts.get((rollout_id, number))
        if plan is not None and reason != plan.reason:
            account.differ(f"rollout {rollout_id}, attempt {number}: {reason}, and {plan.reason} is right")
    _compare_events(client, account, published, name)
    letters = client.query("SELECT topic, partition, offset FROM dead_letters").result_rows
    account.dead_letters = len(letters)
    account.compare("dead letters", published.poison, map(tuple, letters))
    _compare_transitions(client, account, scripts, name)
    return account


def _compare_events(
    client: "Client", account: Account, published: Published, name: Callable[[str], Hashable]
) -> None:
    for view, recorded, ids in (
        ("spans", published.spans, Script.span_ids),
        ("rewards", published.rewards, Script.reward_ids),
    ):
        rows = client.query(f"SELECT attempt_id, sequence_id FROM {view}").result_rows  # noqa: S608  our names
        played = {(place, at) for place, plan in published.scripts.items() for at in ids(plan)}
        account.compare(view, recorded | played, ((name(attempt_id), at) for attempt_id, at in rows))


def _compare_transitions(
    client: "Client", account: Account, scripts: Scripts, name: Callable[[str], Hashable]
) -> None:
    """Every transition of the played attempts, down to the last token id and logprob."""
    rows = client.query(
        "SELECT attempt_id, sequence_id, prompt_token_ids, response_token_ids, response_logprobs, reward "
        "FROM transitions"
    ).result_rows
    account.transitions = len(rows)
    found = [
        ((name(attempt_id), at), (tuple(prompt), tuple(response), tuple(logprobs), reward))
        for attempt_id, at, prompt, response, logprobs, reward in rows
        if name(attempt_id) != attempt_id
    ]
    wanted: dict[Hashable, object] = {
        (place, at): (step.prompt, step.response, step.logprobs, step.reward)
        for place, plan in scripts.items()
        for at, step in plan.transitions().items()
    }
    account.compare("transitions", set(wanted), (place for place, _ in found))
    for place, content in found:
        if place in wanted and wanted[place] != content:
            account.differ(f"the transition at {place} differs from what the model generated")
