"""What can't be read of a file: named by place and reason, kept with its bytes (G8, C9)."""

from headrace.schemas.errors import BadRecordError
from headrace.schemas.records import DeadLetter

CONSUMER = "ingest"
_NAME_LIMIT = 512


class MalformedError(BadRecordError):
    """What is wrong, before it is known where. Messages never quote content: it may be a prompt."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        """A short word for counting."""
        self.detail = detail


class BadInputError(BadRecordError):
    """A line of a file, or a span within a line, that can't become records.

    Readers yield it and go on. `part` is 0 for the line as a whole and k for its k-th span, whose
    bytes are then those of the span alone: a line may hold a thousand good ones.
    """

    def __init__(self, file: str, line: int, problem: MalformedError, original: bytes, part: int = 0) -> None:
        place = f"{file}:{line}" + (f" span {part}" if part else "")
        super().__init__(f"{place}: {problem.reason}: {problem.detail}")
        self.file = file
        self.line = line
        self.part = part
        self.reason = problem.reason
        self.detail = problem.detail
        self.original = original

    def dead_letter(self) -> DeadLetter:
        """The topic is the file, the partition the part, the offset the line: read again, it is the same."""
        return DeadLetter(
            consumer=CONSUMER,
            topic=self.file[-_NAME_LIMIT:],
            partition=self.part,
            offset=self.line,
            value=self.original,
            reason=self.reason,
            detail=self.detail,
        )
