"""The real daemon, with its Python calls recorded between the lines `start` and `stop` on standard input."""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Final

_ROOT: Final = str(Path(__file__).parents[2]) + "/"
_QUIET_S: Final = 0.2
"""No function for that long: records of earlier calls are saved, and their audit lines written."""
_MOST_S: Final = 2.0
"""How long to wait for that."""
_PACKAGES: Final = tuple(f"{_ROOT}{name}/" for name in ("runtimeproxy", "policies"))


class Recorder:
    """A profile function for all threads: the functions called, in order."""

    def __init__(self) -> None:
        self._calls: list[tuple[float, int, str, str]] | None = None
        self._latest_s = 0.0

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        """Notes the call of a function of the product."""
        calls = self._calls
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(_PACKAGES):
            return
        self._latest_s = now_s = time.monotonic()
        if calls is not None:
            name = code.co_filename.removeprefix(_ROOT)
            calls.append((now_s, threading.get_ident(), name, code.co_qualname))

    def obey(self) -> None:
        """Starts and stops as standard input says; answers each line with one of JSON.

        Starts when the work that earlier calls have left behind is done: it is no part of the next call.
        """
        for line in sys.stdin:
            if line.strip() == "start":
                self._wait_until_quiet()
            calls, self._calls = self._calls, [] if line.strip() == "start" else None
            sys.stdout.write(json.dumps(calls or []) + "\n")
            sys.stdout.flush()

    def _wait_until_quiet(self) -> None:
        ends_s = time.monotonic() + _MOST_S
        while (now_s := time.monotonic()) < ends_s and now_s - self._latest_s < _QUIET_S:
            time.sleep(0.01)


def main() -> int:
    """Runs the command `koord-runtime-proxy` with this process's arguments."""
    recorder = Recorder()
    threading.Thread(target=recorder.obey, daemon=True).start()
    threading.setprofile(recorder)
    sys.setprofile(recorder)
    from runtimeproxy.cli import main as run

    return run()


if __name__ == "__main__":
    sys.exit(main())
