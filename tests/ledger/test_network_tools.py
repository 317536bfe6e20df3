"""Programs that hang, print without end, or cannot be ended: each costs a bounded time and bounded memory."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
from collections.abc import Iterator

import pytest

from runtimeproxy.ledger import network_tools
from runtimeproxy.ledger.network_tools import NetworkTools, Output, Programs

SHELL = "/bin/sh"
LONG_S = 60.0
"""More than a busy machine needs."""


def test_a_program_reads_its_commands_and_prints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network_tools, "TIMEOUT_S", LONG_S)
    found = Programs().run((SHELL, "-c", "cat; echo bad >&2; exit 3"), "a\n" * 100_000)
    assert found == Output("a\n" * 100_000, "bad\n", 3)


def test_a_program_that_prints_without_end_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network_tools, "MOST_OUTPUT_BYTES", 1 << 20)
    monkeypatch.setattr(network_tools, "TIMEOUT_S", LONG_S)
    with pytest.raises(OSError, match="prints more than 1 MiB") as caught:
        Programs().run((SHELL, "-c", "exec cat /dev/zero"), "")
    assert caught.value.errno == errno.EFBIG


@pytest.mark.parametrize("does", ["exec sleep 600", "exec >&- 2>&-; exec sleep 600", "sleep 600"])
def test_a_program_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch, does: str) -> None:
    """Also one without output, and one whose child keeps it."""
    monkeypatch.setattr(network_tools, "TIMEOUT_S", 0.1)
    monkeypatch.setattr(network_tools, "_END_S", LONG_S)
    programs = Programs()
    with pytest.raises(TimeoutError, match="has not ended after"):
        programs.run((SHELL, "-c", does), "")
    monkeypatch.setattr(network_tools, "TIMEOUT_S", LONG_S)
    assert programs.run((SHELL, "-c", "echo x"), "") == Output("x\n", "", 0)


class Deaf(subprocess.Popen[bytes]):
    """Cannot be ended, as a process that waits for the kernel's lock of the network."""

    made: list[Deaf]

    def __init__(self, *arguments: object, **options: object) -> None:
        super().__init__(*arguments, **options)  # type: ignore[call-overload]
        self.made.append(self)

    def kill(self) -> None:
        pass


@pytest.fixture
def deaf(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Deaf]]:
    Deaf.made = []
    monkeypatch.setattr(subprocess, "Popen", Deaf)
    yield Deaf.made
    for each in Deaf.made:
        if each.poll() is None:
            os.kill(each.pid, signal.SIGKILL)
            each.wait()


def test_beside_one_that_cannot_be_ended_no_other_is_started(
    monkeypatch: pytest.MonkeyPatch, deaf: list[Deaf]
) -> None:
    monkeypatch.setattr(network_tools, "TIMEOUT_S", 0.1)
    monkeypatch.setattr(network_tools, "_END_S", 0.05)
    programs = Programs()
    with pytest.raises(TimeoutError, match="has not ended after"):
        programs.run((SHELL, "-c", "exec sleep 600"), "")
    for _ in range(3):
        with pytest.raises(TimeoutError, match=f"process {deaf[0].pid} of before cannot be ended"):
            programs.run((SHELL, "-c", "echo x"), "")
    assert len(deaf) == 1
    os.kill(deaf[0].pid, signal.SIGKILL)
    os.waitid(os.P_PID, deaf[0].pid, os.WEXITED | os.WNOWAIT)
    monkeypatch.setattr(network_tools, "TIMEOUT_S", LONG_S)
    assert programs.run((SHELL, "-c", "echo x"), "").text == "x\n"


def test_an_error_is_one_short_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network_tools, "find_program", lambda name: f"/usr/sbin/{name}")
    printed = "\x1b[2J/dev/stdin:2:1-9: Error: no\n" + "add limit\n^^^^^^^^^\n" + "x" * 100_000
    with pytest.raises(OSError, match="nft: ") as caught:
        NetworkTools(lambda *_: Output("", printed, 1)).nft("x")
    text = str(caught.value.strerror)
    assert text.startswith("nft: \\x1b[2J/dev/stdin:2:1-9: Error: no; add limit; xxx")
    assert len(text) < 400


@pytest.mark.parametrize(
    ("shown", "addresses"),
    [
        ('[{"addr_info": [{"local": "10.0.0.1"}, {"local": "fd00::1"}]}, {}]', {"10.0.0.1", "fd00::1"}),
        ('[{"addr_info": 7}, 7, {"addr_info": [7]}]', set()),
        ("{}", set()),
        ("7", set()),
    ],
)
def test_addresses_of_the_node(monkeypatch: pytest.MonkeyPatch, shown: str, addresses: set[str]) -> None:
    monkeypatch.setattr(network_tools, "find_program", lambda name: f"/usr/sbin/{name}")
    assert NetworkTools(lambda *_: Output(shown, "", 0)).addresses() == addresses
