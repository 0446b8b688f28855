"""The exception tree, sorted by what the caller does about it: retry, dead-letter, or stop."""


class HeadraceError(Exception):
    """Root of every error that headrace raises on purpose."""


class RetryableError(HeadraceError):
    """A dependency failed (broker, ClickHouse, registry): pause and try the same thing again."""


class BadRecordError(HeadraceError):
    """A record that no retry can mend: it goes to dead-letters with this message as the detail."""

    def __init__(self, message: str, *, reason: str = "bad_record") -> None:
        super().__init__(message)
        self.reason = reason
        """A short word for counting."""


class FatalError(HeadraceError):
    """Wrong configuration or a broken invariant: the process stops and says why."""
