"""A program whose processes and threads come and go all the time: each makes the next one, then ends."""

from __future__ import annotations

import contextlib
import os
import threading
import time

LIFE_S = 0.5
CHAINS = 4


def live(chain: int, generation: int = 0) -> None:
    """Lives for a short time, then leaves a child."""
    time.sleep(LIFE_S)
    if os.fork() == 0:
        live(chain, generation + 1)
    os._exit(0)


def threads() -> None:
    """Makes the next thread, and ends."""
    time.sleep(LIFE_S)
    threading.Thread(target=threads).start()


for each in range(CHAINS):
    if os.fork() == 0:
        live(each)
threads()
while True:
    time.sleep(1)
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
