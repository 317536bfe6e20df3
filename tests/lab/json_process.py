"""A program that reads and writes one JSON object a line."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

Line = dict[str, Any]

_TIMEOUT_S = 60.0


class JsonProcess:
    """Runs the program from `with` to the end of its block.

    Args:
        command: its command line.
        log_file: where its stderr goes.
    """

    def __init__(self, command: Sequence[str | Path], log_file: Path) -> None:
        self._command = [str(word) for word in command]
        self._log_file = log_file
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None
        self._lines: list[Line] = []
        self._has_ended = False
        self._changed = threading.Condition()

    @property
    def pid(self) -> int:
        """The process id. Raises RuntimeError when it was not started."""
        return self._running().pid

    @property
    def is_running(self) -> bool:
        """Whether it was started and not ended."""
        return self._process is not None

    @property
    def log(self) -> str:
        """What it has written to stderr since the first start."""
        return self._log_file.read_text(errors="replace")

    def start(self) -> None:
        """Starts it; lines of an earlier run are forgotten."""
        self._lines = []
        self._has_ended = False
        with self._log_file.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        self._reader = threading.Thread(target=self._read, args=(self._process,), daemon=True)
        self._reader.start()

    def send(self, line: Mapping[str, Any]) -> None:
        """Writes one line to its stdin."""
        stdin = self._running().stdin
        if stdin is None:
            raise RuntimeError("no pipe")
        stdin.write(json.dumps(line) + "\n")
        stdin.flush()

    def take(self, is_wanted: Callable[[Line], bool], what: str, timeout_s: float = _TIMEOUT_S) -> Line:
        """Waits for a line, removes it from those received, and returns it.

        Raises:
            TimeoutError: it did not come in time.
            EOFError: the program has ended without it.
        """
        end = time.monotonic() + timeout_s
        with self._changed:
            while True:
                for index, line in enumerate(self._lines):
                    if is_wanted(line):
                        return self._lines.pop(index)
                if self._has_ended:
                    raise EOFError(f"{what}: {self._command[0]} has ended: {self.log[-2000:]}")
                if not self._changed.wait(end - time.monotonic()):
                    raise TimeoutError(f"{what}: not within {timeout_s} s")

    def kill(self) -> None:
        """Ends it with SIGKILL."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Ends it with SIGTERM."""
        self._end(signal.SIGTERM)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()

    def _running(self) -> subprocess.Popen[str]:
        if self._process is None:
            raise RuntimeError(f"{self._command[0]} does not run")
        return self._process

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(how)
            process.wait(timeout=20)
            if self._reader is not None:
                self._reader.join()
            if process.stdin is not None:
                process.stdin.close()

    def _read(self, process: subprocess.Popen[str]) -> None:
        if process.stdout is None:
            return
        with process.stdout as output:
            for text in output:
                with self._changed:
                    self._lines.append(json.loads(text))
                    self._changed.notify_all()
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()
