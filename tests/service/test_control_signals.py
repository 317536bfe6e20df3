"""The switch by command finds the process that holds a socket's lock, and no other."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from runtimeproxy.relay.listener import listen, lock_path
from runtimeproxy.service.control_signals import NoInstanceError, set_bypass

LISTENS = """\
import signal, sys
from runtimeproxy.relay.listener import listen
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1, signal.SIGUSR2})
listener = listen(sys.argv[1])
print("listens", flush=True)
print(signal.sigwait({signal.SIGUSR1, signal.SIGUSR2}).name, flush=True)
listener.release()
"""


@pytest.mark.parametrize(("is_on", "name"), [(True, "SIGUSR1"), (False, "SIGUSR2")])
def test_it_sends_the_signal(socket_folder: Path, is_on: bool, name: str) -> None:
    path = str(socket_folder / "proxy.sock")
    with subprocess.Popen(
        [sys.executable, "-c", LISTENS, path], stdout=subprocess.PIPE, text=True
    ) as instance:
        assert instance.stdout is not None
        assert instance.stdout.readline() == "listens\n"
        assert set_bypass(path, is_on=is_on) == instance.pid
        assert instance.stdout.readline() == f"{name}\n"
    with pytest.raises(NoInstanceError, match="no instance serves here"):
        set_bypass(path, is_on=is_on)


def test_a_process_that_does_not_hold_the_lock_is_left_alone(socket_folder: Path) -> None:
    path = str(socket_folder / "proxy.sock")
    listen(path).release()
    assert int(Path(lock_path(path)).read_text()) == os.getpid()
    # The signal's default would end this test.
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL
    with pytest.raises(NoInstanceError):
        set_bypass(path, is_on=True)


@pytest.mark.parametrize("text", [None, "", "nonsense", "999999999"])
def test_a_lock_that_tells_nothing(socket_folder: Path, text: str | None) -> None:
    path = str(socket_folder / "proxy.sock")
    if text is not None:
        Path(lock_path(path)).write_text(text)
    with pytest.raises(NoInstanceError):
        set_bypass(path, is_on=True)
