"""A command finds the process that holds a socket's lock, and no other."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from runtimeproxy.listener import listen, lock_path
from runtimeproxy.signals import BYPASS_OFF, BYPASS_ON, NoInstanceError, signal_instance

LISTENS = """\
import signal, sys
from runtimeproxy.listener import listen
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1, signal.SIGUSR2})
listener = listen(sys.argv[1])
print("listens", flush=True)
print(signal.sigwait({signal.SIGUSR1, signal.SIGUSR2}).name, flush=True)
listener.release()
"""


@pytest.mark.parametrize(("number", "name"), [(BYPASS_ON, "SIGUSR1"), (BYPASS_OFF, "SIGUSR2")])
def test_it_sends_the_signal(socket_folder: Path, number: int, name: str) -> None:
    path = str(socket_folder / "proxy.sock")
    with subprocess.Popen(
        [sys.executable, "-c", LISTENS, path], stdout=subprocess.PIPE, text=True
    ) as instance:
        assert instance.stdout is not None
        assert instance.stdout.readline() == "listens\n"
        assert signal_instance(path, number) == instance.pid
        assert instance.stdout.readline() == f"{name}\n"
    with pytest.raises(NoInstanceError, match="no instance serves here"):
        signal_instance(path, number)


def test_a_process_that_does_not_hold_the_lock_is_left_alone(socket_folder: Path) -> None:
    path = str(socket_folder / "proxy.sock")
    listen(path).release()
    assert int(Path(lock_path(path)).read_text()) == os.getpid()
    # The signal's default would end this test.
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL
    with pytest.raises(NoInstanceError):
        signal_instance(path, BYPASS_ON)


@pytest.mark.parametrize("text", [None, "", "nonsense", "999999999"])
def test_a_lock_that_tells_nothing(socket_folder: Path, text: str | None) -> None:
    path = str(socket_folder / "proxy.sock")
    if text is not None:
        Path(lock_path(path)).write_text(text)
    with pytest.raises(NoInstanceError):
        signal_instance(path, BYPASS_ON)
