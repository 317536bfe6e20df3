"""Commands about the daemon's process that need none."""

from __future__ import annotations

from pathlib import Path

from tests.commands.conftest import Run
from tests.daemon.kubelet import kubelet


def test_removal_waits_for_the_kubelet(run: Run, tmp_path: Path) -> None:
    ours, others = (f"unix://{tmp_path}/{name}.sock" for name in ("proxy", "runtime"))
    flags = [f"--koord-runtimeproxy-endpoint={tmp_path}/proxy.sock"]
    flags.append(f"--remote-runtime-service-endpoint={tmp_path}/runtime.sock")
    with kubelet(tmp_path, f"--container-runtime-endpoint={ours}") as pid:
        done = run("check-removal", *flags)
    assert (done.code, done.out) == (1, "")
    assert f"the running kubelet (process {pid}): --container-runtime-endpoint is {ours}" in done.err
    assert f"set --container-runtime-endpoint={others} and restart the kubelet" in done.err
    assert run("check-removal", *flags) == (0, f"no kubelet uses {tmp_path}/proxy.sock\n", "")


def test_removal_is_refused_if_the_endpoint_is_not_known(run: Run) -> None:
    done = run("check-removal", "--koord-runtimeproxy-endpoint", "relative")
    assert done.code == 2
    assert "'relative' has no absolute path" in done.err
