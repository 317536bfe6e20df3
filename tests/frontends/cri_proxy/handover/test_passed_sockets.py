"""Sockets from a service manager that cannot be served."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from runtimeproxy.errors import ConfigError
from runtimeproxy.sdnotify import listen_sockets
from tests.lab.programs import REPOSITORY

TAKES_TWO = """\
import os, socket, sys
from runtimeproxy.config.settings import ProxySettings
from runtimeproxy.frontends.cri_proxy.wiring import listener_of
made = [socket.socket(socket.AF_UNIX) for _ in sys.argv[1:]]
for each, path in zip(made, sys.argv[1:]):
    each.bind(path)
    each.listen()
copies = [os.dup2(each.fileno(), number) for number, each in enumerate(made, 50)]
for number, copy in enumerate(copies, 3):
    os.dup2(copy, number)
listener = listener_of(ProxySettings(), {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "2"})
print(listener.address, flush=True)
os._exit(0)
"""
"""What systemd does for a socket unit with two names, and then the daemon."""


def test_a_socket_without_a_path_is_refused() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as abstract:
        abstract.bind(f"\0koord-test-{os.getpid()}")
        abstract.listen()
        first = os.dup(abstract.fileno())
    with pytest.raises(ConfigError, match="a socket without a path"):
        listen_sockets({"LISTEN_PID": "42", "LISTEN_FDS": "1"}, first=first, pid=42)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(first)


def test_a_second_socket_is_named(socket_folder: Path) -> None:
    paths = [str(socket_folder / name) for name in ("first", "second")]
    done = subprocess.run(
        [sys.executable, "-c", TAKES_TWO, *paths], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    assert done.stdout == f"{paths[0]}\n"
    assert f"{paths[1]} was passed as a second socket and is not served" in done.stderr
