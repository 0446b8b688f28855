"""What an agent's code can run into."""

from headrace.schemas.errors import FatalError, HeadraceError


class NoAttemptError(HeadraceError):
    """Nothing runs here that events could belong to."""


class AttemptClosedError(HeadraceError):
    """The attempt has ended; what is emitted now has no place in it."""


class InvalidRewardError(HeadraceError, ValueError):
    """Not a finite number, or about a call that was not made (C17)."""


class AgentNotFoundError(FatalError):
    """What was named as the agent is not there, or is none."""


class RunnerFailedError(FatalError):
    """The runner can't go on: what it had taken comes back through deadlines."""


class ProxyFailedError(HeadraceError):
    """The proxy that numbers an attempt's events is away, full, or has lost it: the attempt has failed."""
