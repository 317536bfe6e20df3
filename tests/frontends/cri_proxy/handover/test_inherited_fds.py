"""What a successor finds in its environment."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from runtimeproxy.errors import ConfigError
from runtimeproxy.frontends.cri_proxy.handover.protocol import VARIABLE, Inheritance, successor_environ
from tests.lab.programs import REPOSITORY

GIVEN = Inheritance(4, 5, -1, "/run/proxy.sock", 77)


def test_it_comes_back_as_it_was_and_is_taken_once() -> None:
    environ = successor_environ({"PATH": "/bin"}, GIVEN)
    assert Inheritance.take(environ) == GIVEN
    assert environ == {"PATH": "/bin"}
    assert Inheritance.take(environ) is None


@pytest.mark.parametrize("bypass", [None, False, True])
def test_an_operators_choice_is_there_only_if_there_is_one(bypass: bool | None) -> None:
    given = replace(GIVEN, bypass=bypass)
    environ = successor_environ({}, given)
    assert ("switched" in json.loads(environ[VARIABLE])) is (bypass is not None)
    assert Inheritance.take(environ) == given


@pytest.mark.parametrize(
    ("environ", "left"),
    [
        pytest.param(
            {"LISTEN_PID": "1", "LISTEN_FDS": "1", "LISTEN_FDNAMES": "cri"}, {}, id="passed sockets"
        ),
        pytest.param({"NOTIFY_SOCKET": "/n"}, {"NOTIFY_SOCKET": "/n"}, id="notifications"),
        pytest.param(
            {"WATCHDOG_USEC": "9", "WATCHDOG_PID": str(os.getpid())},
            {"WATCHDOG_USEC": "9"},
            id="own watchdog",
        ),
        pytest.param(
            {"WATCHDOG_USEC": "9", "WATCHDOG_PID": "1"},
            {"WATCHDOG_USEC": "9", "WATCHDOG_PID": "1"},
            id="another's watchdog",
        ),
        pytest.param({VARIABLE: "old"}, {}, id="what this process was given"),
    ],
)
def test_what_the_service_manager_said(environ: dict[str, str], left: dict[str, str]) -> None:
    result = successor_environ(environ, GIVEN)
    assert Inheritance.take(result) == GIVEN
    assert result == left


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nonsense",
        "[]",
        "{}",
        '{"control_fd": 4}',
        '{"control_fd":4,"listening_fd":5,"lock_fd":-1,"path":null,"inode":0,"version":2}',
    ],
)
def test_what_makes_no_sense(text: str) -> None:
    with pytest.raises(ConfigError, match=VARIABLE):
        Inheritance.take({VARIABLE: text})


def test_the_listener_is_not_owned_yet(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.bind(str(tmp_path / "s"))
        listening.listen()
        given = Inheritance(-1, os.dup(listening.fileno()), -1, str(tmp_path / "s"), 0)
        listener = given.listener()
        assert not listener.sock.get_inheritable()
        assert listener.address == listening.getsockname()
        listener.release()
        assert (tmp_path / "s").is_socket()


def test_a_file_that_is_no_socket(tmp_path: Path) -> None:
    with (tmp_path / "file").open("w") as file, pytest.raises(ConfigError, match="not a socket"):
        Inheritance(file.fileno(), -1, -1, None, 0).control()


TELLS = """
import os, subprocess, sys
from runtimeproxy.frontends.cri_proxy.handover.protocol import report_to_predecessor
report_to_predecessor("from the child")
if len(sys.argv) == 1:
    subprocess.run([sys.executable, __file__, "grandchild"], close_fds=False, check=True)
"""


def test_only_the_child_says_why_it_does_not_come_up(tmp_path: Path) -> None:
    script = tmp_path / "tells.py"
    script.write_text(TELLS)
    descriptor = os.memfd_create("errors", 0)
    os.set_inheritable(descriptor, True)
    environ = successor_environ({**os.environ, "PYTHONPATH": str(REPOSITORY)}, GIVEN, descriptor)
    subprocess.run([sys.executable, script], env=environ, pass_fds=(descriptor,), check=True)
    assert os.pread(descriptor, 1_000, 0) == b"from the child\n"
    os.close(descriptor)
