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
_PACKAGES: Final = tuple(f"{_ROOT}{name}/" for name in ("runtimeproxy", "policies"))


class Recorder:
    """A profile function for all threads: the functions called, in order."""

    def __init__(self) -> None:
        self._calls: list[tuple[float, int, str, str]] | None = None

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        """Notes the call of a function of the product."""
        calls = self._calls
        code = frame.f_code
        if calls is None or event != "call" or not code.co_filename.startswith(_PACKAGES):
            return
        name = code.co_filename.removeprefix(_ROOT)
        calls.append((time.monotonic(), threading.get_ident(), name, code.co_qualname))

    def obey(self) -> None:
        """Starts and stops as standard input says; answers each line with one of JSON."""
        for line in sys.stdin:
            calls, self._calls = self._calls, [] if line.strip() == "start" else None
            sys.stdout.write(json.dumps(calls or []) + "\n")
            sys.stdout.flush()


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
