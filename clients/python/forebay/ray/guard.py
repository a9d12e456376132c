"""Runs a command until it ends, or until standard input ends because the parent process has ended.

    guard.py COMMAND [ARGUMENT ...]

The command gets SIGTERM when standard input ends. The program ends with the status of the command. On Linux, the command also
gets SIGTERM when this program is killed: Ray kills the child processes of an actor whose node is lost, but not their children.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading


# Option of prctl(2) in <linux/prctl.h>.
PR_SET_PDEATHSIG = 1


def main() -> None:
    guard = os.getpid()

    def end_with_guard() -> None:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != guard:
            # The guard was killed before the call.
            os._exit(1)

    linux = sys.platform.startswith("linux")
    process = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL, preexec_fn=end_with_guard if linux else None)

    def await_end() -> None:
        status = process.wait()
        # As a shell reports a signal.
        os._exit(status if status >= 0 else 128 - status)

    waiter = threading.Thread(target=await_end)
    waiter.start()
    while os.read(0, 4096):
        pass
    process.terminate()
    waiter.join()


if __name__ == "__main__":
    main()
