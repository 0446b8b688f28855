"""How our processes log: structlog on stderr, one event a line, JSON where nobody watches."""

import logging
import sys

import structlog


def configure() -> None:
    """Once, at a process's entry. Libraries' own warnings come out the same way."""
    timestamps = structlog.processors.TimeStamper(fmt="iso", utc=True)
    watched = sys.stderr.isatty()
    renderer = structlog.dev.ConsoleRenderer() if watched else structlog.processors.JSONRenderer()
    # No local variables in tracebacks: they would show what the records say.
    trace = structlog.processors.format_exc_info
    shared: list[structlog.typing.Processor] = [structlog.stdlib.add_log_level, timestamps, trace]
    structlog.configure(
        processors=[*shared, renderer],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.add_logger_name],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
