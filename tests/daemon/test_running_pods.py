"""Pods that run when policies come, change and go: their values follow, and go back to what they were."""

from __future__ import annotations

import random
import signal
import subprocess
import time

import pytest

from runtimeproxy.cgroups.writer import CgroupWriter
from runtimeproxy.testing import CgroupFiles
from tests.daemon.conftest import Daemons
from tests.daemon.driving import Pod, batch_pod
from tests.lab.cri_client import CriClient
from tests.lab.deadline import wait_until
from tests.lab.programs import REPOSITORY
from tests.lab.proxy_process import ProxyProcess

OFF = "[policies.batch-resource]\nenabled = false\n"
ON = "[policies.batch-resource]\nenabled = true\n"
PODS = 4


def texts(files: CgroupFiles) -> dict[str, str]:
    """The content of every file, byte for byte."""
    return {str(path): path.read_text() for path in files.root.rglob("*") if path.is_file()}


def quotas(files: CgroupFiles, made: list[Pod]) -> set[str]:
    """The quotas of the pods and of their containers."""
    cgroups = [each.config.linux.cgroup_parent for each in made]
    cgroups += [f"{each.config.linux.cgroup_parent}/{each.container}" for each in made]
    return {files.read(cgroup, "cpu.max").partition(" ")[0] for cgroup in cgroups}


def configure(daemon: ProxyProcess, config: str) -> None:
    (daemon.folder / "config.toml").write_text(config)
    daemon.signal(signal.SIGHUP)


def switch_on(daemon: ProxyProcess, made: list[Pod], files: CgroupFiles) -> None:
    """Loads the policy, and waits until the pods and their containers have its values."""
    configure(daemon, ON)
    wait_until(lambda: quotas(files, made) == {"50000"}, "the policy's values")


def wait_for_originals(files: CgroupFiles, before: dict[str, str]) -> None:
    wait_until(lambda: texts(files) == before, "the original values, byte for byte")


@pytest.fixture
def daemon(daemons: Daemons) -> ProxyProcess:
    return daemons.start(OFF)


@pytest.fixture
def made(daemon: ProxyProcess, cgroup_files: CgroupFiles) -> list[Pod]:
    """Pods that were started without policies, as the kubelet has set them up."""
    found: list[Pod] = []
    with CriClient(daemon.socket) as client:
        for number in range(PODS):
            each = batch_pod(client, f"batch{number}")
            parent = each.config.linux.cgroup_parent
            cgroup_files.make(parent)
            CgroupWriter(cgroup_files.root).write(parent, {"cpu.shares": 2, "cpu.cfs_quota_us": 200_000})
            found.append(each.run().create().start())
    return found


def test_values_come_with_a_policy_and_go_with_it(
    daemon: ProxyProcess, made: list[Pod], cgroup_files: CgroupFiles
) -> None:
    before = texts(cgroup_files)
    for _ in range(2):
        switch_on(daemon, made, cgroup_files)
        configure(daemon, OFF)
        wait_for_originals(cgroup_files, before)


@pytest.mark.slow
def test_a_policy_that_goes_while_the_daemon_is_away(
    daemon: ProxyProcess, made: list[Pod], cgroup_files: CgroupFiles
) -> None:
    before = texts(cgroup_files)
    switch_on(daemon, made, cgroup_files)
    assert daemon.terminate() == 0
    (daemon.folder / "config.toml").write_text(OFF)
    daemon.start()
    wait_for_originals(cgroup_files, before)


@pytest.mark.slow
def test_a_daemon_that_is_killed_at_any_time(
    daemon: ProxyProcess, made: list[Pod], cgroup_files: CgroupFiles
) -> None:
    before, chance = texts(cgroup_files), random.Random(7)
    for number in range(6):
        (daemon.folder / "config.toml").write_text(OFF if number % 2 else ON)
        daemon.signal(signal.SIGHUP)
        time.sleep(chance.uniform(0.05, 1.2))
        daemon.kill()
        daemon.start()
    switch_on(daemon, made, cgroup_files)
    configure(daemon, OFF)
    wait_for_originals(cgroup_files, before)


def test_restore_gives_back_what_was_changed_by_file(
    daemon: ProxyProcess, made: list[Pod], cgroup_files: CgroupFiles
) -> None:
    before = texts(cgroup_files)
    switch_on(daemon, made, cgroup_files)
    daemon.kill()
    program, option, module, *flags = daemon.command()
    done = subprocess.run(
        [program, option, module, "restore", *flags],
        cwd=REPOSITORY,
        env=daemon.environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert texts(cgroup_files) == before, done.stdout
