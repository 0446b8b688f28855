"""What the scenarios share."""

from tests.audit import audit
from tests.pipeline import Feed, Pipeline, publish_late
from tests.stories import Stream

from headrace.cli.stack.processor import ProcessorProcess


def finish(pipeline: Pipeline, stream: Stream, feed: Feed) -> dict[str, int]:
    """To the end, what comes after the verdicts included, and account for all of it."""
    feed.finish()
    pipeline.settle(len(stream.stories))
    publish_late(pipeline, stream)
    pipeline.settle(len(stream.stories))
    repeats = audit(pipeline, stream)
    print(f"{stream.num_messages} messages, of {len(stream.stories)} trajectories repeated: {repeats}")
    return repeats


def has_rows(pipeline: Pipeline, number: int) -> bool:
    return pipeline.num_rows() >= number


def has_verdicts(pipeline: Pipeline, number: int) -> bool:
    return pipeline.num_in("trajectories") >= number


def num_said(process: ProcessorProcess, event: str) -> int:
    return process.log_path.read_text().count(f'"event": "{event}"')
