"""assembler_events_per_s: one process catches up with a log that is full already.

From the moment the broker has given its member the partitions, so that recovery counts and the start of the
interpreter does not, to the moment at which the last attempt's trajectory is acknowledged on the topic.
Events are those published: 64 attempts under way at a time, 10 events each, calls with token ids.
"""

import time
from collections.abc import Iterator

from tests.bench.figures import Figure
from tests.bench.parts import Parts, say
from tests.bench.records import EVENTS_PER_ATTEMPT, events
from tests.bench.watch import Watch, wait_until

from headrace.streams.client import Publisher

ATTEMPTS = 6_000


def bench(parts: Parts, scale: float) -> Iterator[Figure]:
    num_attempts = max(64, round(ATTEMPTS * scale))
    num_events = num_attempts * EVENTS_PER_ATTEMPT
    with parts.lane("assembler") as lane:
        with Publisher(lane.kafka) as publisher:
            for event in events(num_attempts):
                publisher.publish(event)
        say(f"assembler: {num_events} events are in the log")
        watch, trajectories = Watch(lane.kafka), lane.topic("trajectories")
        started = time.perf_counter()
        process = lane.start("assembler")
        assigned = wait_until(
            lambda: watch.is_assigned(lane.group("assembler")), what="an assignment", processes=[process]
        )
        first = wait_until(
            lambda: watch.num_records(trajectories) > 0, what="a trajectory", processes=[process]
        )
        last = wait_until(
            lambda: watch.num_records(trajectories) >= num_attempts,
            what=f"{num_attempts} trajectories",
            processes=[process],
        )
        took = last - assigned
        say(
            f"assembler: {took:.2f} s, of which {first - assigned:.2f} s to the first trajectory; assigned "
            f"{assigned - started:.2f} s after its start"
        )
    yield Figure("assembler_events_per_s", num_events / took, "events/s")
