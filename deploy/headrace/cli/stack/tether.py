"""Run as a script between a supervisor and its child: the child is killed when its supervisor dies.

`python tether.py PARENT_PID PROGRAM ARG…` asks the kernel for SIGKILL at the parent's death and becomes
PROGRAM (same pid). A script of its own because `preexec_fn` may deadlock in a process that has threads. Linux
only.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    parent_pid, program = int(sys.argv[1]), sys.argv[2:]
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        sys.exit(f"prctl failed: {os.strerror(ctypes.get_errno())}")
    # The parent may have died before the request was made.
    if os.getppid() != parent_pid:
        sys.exit("the supervisor is gone")
    try:
        os.execvp(program[0], program)  # noqa: S606 - no shell is wanted
    except OSError as error:
        sys.exit(f"{program[0]}: {error.strerror}")


if __name__ == "__main__":
    main()
