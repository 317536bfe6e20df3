"""The command `record`: intercepted calls and decisions, from the daemon to a file."""

from __future__ import annotations

import gzip
import os
import sys
from argparse import Namespace
from contextlib import ExitStack
from pathlib import Path
from typing import IO

from cri_api.runtimeproxy.v1 import api_pb2
from runtimeproxy.commands.arguments import PROGRAM
from runtimeproxy.commands.client import writing
from runtimeproxy.commands.exit_codes import CommandError, ExitCode
from runtimeproxy.commands.output import counted
from runtimeproxy.errors import StatusCode
from runtimeproxy.http2.client import RpcError

_MODE = 0o600
"""Of the file: it has the names and annotations of all pods."""


class Writer:
    """A recording's file, which is a whole one after each `write`.

    Args:
        path: of a new file; compressed if it ends with `.gz`.

    Raises:
        CommandError: The file is there, or cannot be made.
    """

    def __init__(self, path: Path, max_bytes: int) -> None:
        self.path = path
        self.entries = 0
        self._max_bytes = max_bytes
        self._stack = ExitStack()
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _MODE)
        except FileExistsError:
            raise CommandError(f"{path} exists already; name a new file", ExitCode.USAGE) from None
        except OSError as error:
            raise CommandError(f"{path}: cannot be made: {error.strerror}") from error
        self._raw: IO[bytes] = self._stack.enter_context(os.fdopen(descriptor, "wb"))
        self._file: IO[bytes] | gzip.GzipFile = self._raw
        if path.suffix == ".gz":
            self._file = self._stack.enter_context(gzip.GzipFile(fileobj=self._raw, mode="wb"))

    def write(self, lines: bytes) -> None:
        """Writes whole lines. Raises CommandError if the file would be too large, or cannot be written."""
        # Compressed, they are shorter.
        if self.size_bytes + len(lines) > self._max_bytes:
            raise CommandError(
                f"{self.path}: the recording has ended, as the file would have more than {self._max_bytes} "
                f"bytes; it can be replayed, and --max-size gives more room"
            )
        try:
            self._file.write(lines)
            self._file.flush()
            self._raw.flush()
        except OSError as error:
            raise CommandError(f"{self.path}: cannot be written: {error.strerror}") from error
        self.entries += lines.count(b"\n")

    @property
    def size_bytes(self) -> int:
        return self._raw.tell()

    def close(self) -> None:
        self._stack.close()


def record(arguments: Namespace) -> int:
    """Records until Ctrl-C, or for a time."""
    with writing(arguments) as api:
        # Made when the daemon is known to be there; an empty one is of no use.
        writer: Writer | None = None
        try:
            for response in api.Record(api_pb2.RecordRequest(), timeout=arguments.duration):
                writer = writer or Writer(Path(arguments.out), arguments.max_size)
                writer.write(response.lines)
        except RpcError as error:
            if writer is None or error.code is not StatusCode.DEADLINE_EXCEEDED:
                raise
        except KeyboardInterrupt:
            if writer is None:
                raise
        finally:
            if writer is not None:
                writer.close()
                size = os.stat(writer.path).st_size  # noqa: PTH116 - a file name of any form
                text = f"{counted(writer.entries, 'entry', 'entries')}, {counted(size, 'byte')}"
                print(f"{PROGRAM}: {writer.path}: {text}", file=sys.stderr)
    return ExitCode.OK
