"""Run as a script before a program that starts others: when it is gone, what is left of its group is killed.

`python group_guard.py PROGRAM ARG…` becomes PROGRAM (same pid), which must lead its process group. A helper
in a session of its own waits for its end, however it comes: a program that is killed -9 can't end its
children, and not all of them notice. Linux only.
"""

import os
import select
import signal
import sys
from contextlib import suppress


def main() -> None:
    program = sys.argv[1:]
    leader = os.getpid()
    if os.getpgid(0) != leader:
        sys.exit("group_guard.py must lead its process group")
    # Twice, so that the program does not find a child that it knows nothing of.
    child = os.fork()
    if child == 0:
        if os.fork() == 0:
            _guard(leader)
        os._exit(0)
    os.waitpid(child, 0)
    try:
        os.execvp(program[0], program)  # noqa: S606 - no shell is wanted
    except OSError as error:
        sys.exit(f"{program[0]}: {error.strerror}")


def _guard(leader: int) -> None:
    os.setsid()
    with suppress(ProcessLookupError):
        handle = os.pidfd_open(leader)
        # The program's pipes must end with it.
        nothing = os.open(os.devnull, os.O_RDWR)
        for number in range(3):
            os.dup2(nothing, number)
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        poll.poll()
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)
    os._exit(0)


if __name__ == "__main__":
    main()
