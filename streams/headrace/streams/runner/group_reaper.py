"""Run as a script beside a runner: kills the process groups that the runner leaves behind when it dies.

It reads `+GROUP` and `-GROUP` lines; when the pipe ends, because the runner ended in whatever way, the groups
that are left get SIGKILL. A process of its own, since nothing in a killed runner could do it.
"""

import os
import signal
import sys


def main() -> None:
    groups: set[int] = set()
    for line in sys.stdin:
        group = int(line[1:])
        if line[0] == "+":
            groups.add(group)
        else:
            groups.discard(group)
    for group in groups:
        try:
            os.killpg(group, signal.SIGKILL)
        except ProcessLookupError:
            continue


if __name__ == "__main__":
    main()
