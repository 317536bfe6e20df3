"""A runtime that does not ask the daemon as its plugin, or not for everything."""

from __future__ import annotations

from typing import Final

from tests.daemon.failures.scene import Row, Scene
from tests.lab.proxy_process import ProxyProcess


def configuration(scene: Scene) -> str:
    return (
        f'[daemon]\nmode = "nri"\nlock = "{scene.folder}/front-end.lock"\n'
        f'[nri]\nsocket = "{scene.folder}/nri.sock"\n'
    )


def socket_is_missing(scene: Scene) -> ProxyProcess:
    daemon = scene.start(configuration(scene))
    scene.wait_for_zero(daemon, "nri_connected")
    daemon.wait_for_state("STATUS=NRI plugin, not connected")
    found = daemon.run("status")
    assert found.returncode == 1
    assert f"{scene.folder}/nri.sock" in found.stdout
    return daemon


ROWS: Final = {
    "mode `nri`: the runtime's socket for plugins": Row(
        socket_is_missing, lambda s: not s.nri.is_connected and "nri.sock" in str(s.problems)
    ),
}
