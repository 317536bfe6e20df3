"""The watchdog is fed by a call through the own socket."""

from pathlib import Path

import pytest

from tests.daemon.conftest import Daemons
from tests.daemon.driving import pod
from tests.daemon.installed import HANG_LOOP
from tests.lab.cri_client import CriClient
from tests.lab.deadline import wait_until
from tests.lab.proxy_process import ProxyProcess

INTERVAL_S = 0.4


@pytest.fixture
def daemon(daemons: Daemons) -> ProxyProcess:
    daemons.environment["WATCHDOG_USEC"] = str(int(INTERVAL_S * 1_000_000))
    return daemons.start()


def failures(daemon: ProxyProcess) -> int:
    """How often it has logged that its socket cannot be reached."""
    return sum("no answer on the proxy's own socket" in line for line in daemon.log)


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_it_is_fed_again_and_again(daemon: ProxyProcess) -> None:
    for _ in range(3):
        daemon.wait_for_state("WATCHDOG=1", 30)


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_it_starves_while_the_loop_hangs(daemon: ProxyProcess, fifo: Path) -> None:
    with CriClient(daemon.socket) as client:
        hanging = pod(client, annotations={HANG_LOOP: str(fifo)}).run()
        call = client.runtime.CreateContainer.future(hanging.create_request, timeout=30)
        # Opening returns when the loop reads.
        with fifo.open("wb"):
            daemon.forget_states()
            with pytest.raises(TimeoutError):
                daemon.wait_for_state("WATCHDOG=1", 3 * INTERVAL_S)
        daemon.wait_for_state("WATCHDOG=1", 30)
        assert call.result() is not None


def test_it_starves_when_nobody_reaches_the_own_socket(daemon: ProxyProcess) -> None:
    aside = daemon.socket.rename(daemon.folder / "aside.sock")
    before = failures(daemon)
    # The first may be of a question before that, which a busy machine has left without an answer.
    wait_until(lambda: failures(daemon) > before + 1, "the error, twice")
    daemon.forget_states()
    with pytest.raises(TimeoutError):
        daemon.wait_for_state("WATCHDOG=1", 3 * INTERVAL_S)
    aside.rename(daemon.socket)
    daemon.wait_for_state("WATCHDOG=1", 30)


def test_another_processs_watchdog_is_not_fed(daemons: Daemons) -> None:
    daemons.environment.update(WATCHDOG_USEC="100000", WATCHDOG_PID="1")
    daemon = daemons.start()
    with pytest.raises(TimeoutError):
        daemon.wait_for_state("WATCHDOG=1", 0.5)
