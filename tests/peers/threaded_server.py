"""A Unix socket whose connections are served in a thread each."""

from __future__ import annotations

import contextlib
import socket
import threading
from abc import ABC, abstractmethod
from pathlib import Path
from types import TracebackType
from typing import Final, Self

_END_S: Final = 10.0


class ThreadedServer(ABC):
    """Listens from `with` to the end of its block, which also ends all connections.

    Attributes:
        accepted: how many connections there have been.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.accepted = 0
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._accepting = threading.Thread(target=self._accept, name=type(self).__name__)
        self._open: dict[threading.Thread, socket.socket] = {}

    @abstractmethod
    def serve(self, sock: socket.socket, number: int) -> None:
        """Serves a connection, the first with number 0; an `OSError` ends it: clients go at any time."""

    def __enter__(self) -> Self:
        self._listening.bind(str(self.path))
        self._listening.listen(512)
        self._accepting.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A shutdown ends the other thread's accept; a close alone does not.
        self._listening.shutdown(socket.SHUT_RDWR)
        self._accepting.join()
        self._listening.close()
        self.path.unlink()
        for thread, sock in list(self._open.items()):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            thread.join(_END_S)

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listening.accept()
            except OSError:
                return
            arguments = (sock, self.accepted)
            thread = threading.Thread(target=self._run, args=arguments, name=type(self).__name__, daemon=True)
            self.accepted += 1
            self._open[thread] = sock
            thread.start()

    def _run(self, sock: socket.socket, number: int) -> None:
        with sock, contextlib.suppress(OSError):
            self.serve(sock, number)
        self._open.pop(threading.current_thread(), None)
