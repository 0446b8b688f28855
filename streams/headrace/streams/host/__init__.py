"""The process that runs a processor on Faust, with its state in RocksDB."""

from headrace.streams.host.run import EXIT_FAILURE, EXIT_OK, EXIT_STUCK, run
from headrace.streams.host.settings import HostSettings

__all__ = ["EXIT_FAILURE", "EXIT_OK", "EXIT_STUCK", "HostSettings", "run"]
