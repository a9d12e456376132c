"""Runs a command until it ends, or until standard input ends because the parent process has ended.

    guard.py COMMAND [ARGUMENT ...]

The command gets SIGTERM when standard input ends. The program ends with the status of the command.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading


def main() -> None:
    process = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL)

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
