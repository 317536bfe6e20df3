"""A socket belongs to one instance at a time, whichever starts, drains or dies."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from runtimeproxy.listener import lock_path, read_lock
from tests.daemon.conftest import Daemons
from tests.daemon.driving import flowing_events
from tests.daemon.upgrading import Family
from tests.lab.cri_client import CriClient
from tests.lab.deadline import wait_until
from tests.lab.proxy_process import ProxyProcess

RACES = 3


def lock_of(daemon: ProxyProcess) -> Path:
    return Path(lock_path(str(daemon.socket)))


def is_refused(other: ProxyProcess) -> bool:
    """Whether a start ends because another instance is there."""
    other.spawn()
    return other.wait() == 1 and "another instance holds the lock" in "\n".join(other.log)


def test_while_one_serves(daemons: Daemons, daemon: ProxyProcess, client: CriClient) -> None:
    inode = daemon.socket.stat().st_ino
    assert is_refused(daemons.successor(daemon))
    assert daemon.socket.stat().st_ino == inode
    client.wait_until_serving(30)


@pytest.mark.slow
def test_while_a_predecessor_drains(daemons: Daemons, daemon: ProxyProcess, client: CriClient) -> None:
    with Family(daemon) as family:
        _events = flowing_events(client)
        second = family.upgrade()
        other = daemons.successor(daemon)
        assert is_refused(other)
        family.signal(signal.SIGKILL, second)
        wait_until(lambda: family.serving == daemon.pid, "the first process", 30)
        assert is_refused(other)


@pytest.mark.slow
def test_after_an_upgrade_whose_first_process_has_ended(daemons: Daemons, daemon: ProxyProcess) -> None:
    with Family(daemon) as family:
        second = family.upgrade()
        assert daemon.wait() == 0
        other = daemons.successor(daemon)
        assert is_refused(other)
        family.signal(signal.SIGKILL, second)
        family.wait_until_ended(second)
        other.start()
        assert family.serving == other.pid


def test_what_a_killed_one_leaves_is_taken_over(daemons: Daemons, daemon: ProxyProcess) -> None:
    daemon.kill()
    assert daemon.socket.is_socket()
    assert lock_of(daemon).is_file()
    other = daemons.successor(daemon)
    other.start()
    assert read_lock(str(lock_of(daemon)))[0] == other.pid
    with CriClient(other.socket) as client:
        client.wait_until_serving(30)


def test_two_that_start_at_the_same_moment(daemons: Daemons) -> None:
    """Where there is nothing, and then where the one before has left its files."""
    one = daemons.prepare()
    two = daemons.successor(one)
    for _ in range(RACES):
        one.spawn()
        two.spawn()
        wait_until(lambda: not (one.alive() and two.alive()), "the refusal", 30)
        winner, loser = (one, two) if one.alive() else (two, one)
        assert loser.wait() == 1
        with CriClient(one.socket) as client:
            client.wait_until_serving(30)
        assert read_lock(str(lock_of(one)))[0] == winner.pid
        winner.kill()
