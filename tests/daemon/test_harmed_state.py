"""The files of the state folder are overwritten, cut and removed under a daemon that runs."""

from __future__ import annotations

import os
import random
from collections.abc import Iterable
from contextlib import closing, suppress
from pathlib import Path
from typing import Final

import pytest

from runtimeproxy.pods.checkpoint.file import FILE_NAME, CheckpointError, CheckpointFile
from runtimeproxy.testing import CgroupFiles
from tests.daemon.driving import Pod, batch_pod
from tests.lab.cri_client import CriClient
from tests.lab.deadline import wait_until
from tests.lab.proxy_process import ProxyProcess

ROUNDS: Final = 40


def harm(path: Path, chance: random.Random) -> None:
    """What a careless program may do to a file."""
    size = path.stat().st_size
    kind = chance.choice(("cut", "overwrite", "part", "remove", "replace"))
    if kind == "cut":
        os.truncate(path, chance.choice((0, size // 2, size // 8192 * 4096)))
    elif kind == "overwrite":
        path.write_bytes(chance.randbytes(chance.choice((0, 100, size, 2 * size))))
    elif kind == "part":
        with path.open("r+b") as opened:
            opened.seek(chance.randrange(size + 1))
            opened.write(chance.randbytes(5000))
    else:
        path.unlink()
        if kind == "replace":
            path.write_bytes(chance.randbytes(1000))


def saved_ids(folder: Path) -> set[str]:
    """The containers that the next process would find."""
    with suppress(CheckpointError), closing(CheckpointFile(folder, read_only=True)) as file:
        return {each.id for each in file.load().containers}
    return set()


def ids(pods: Iterable[Pod]) -> set[str]:
    return {made.container for made in pods}


@pytest.mark.slow
def test_a_daemon_outlives_what_is_done_to_its_files_and_saves_all_again(
    daemon: ProxyProcess, client: CriClient, cgroup_files: CgroupFiles
) -> None:
    chance = random.Random(20)
    pods = []
    for number in range(ROUNDS):
        made = batch_pod(client, f"batch-{number}")
        cgroup_files.make(made.config.linux.cgroup_parent)
        pods.append(made.run().create().start())
        if number % 4 == 3:
            pods.pop(0).remove()
        for path in (each for each in list(daemon.state_folder.iterdir()) if ".unusable-" not in each.name):
            # The daemon may have removed it meanwhile.
            with suppress(FileNotFoundError):
                harm(path, chance)
        assert daemon.alive()
        if number % 8 == 7:
            wait_until(lambda: saved_ids(daemon.state_folder) == ids(pods), "all records on disk", 60)
    texts = " ".join(record["message"] for record in daemon.log_records)
    assert "all records are saved again" in texts or "the records are rebuilt from the runtime" in texts
    daemon.kill()
    daemon.start()
    daemon.wait_for_state(f"STATUS=7 policies; {len(pods)} pods, {len(pods)} containers;")


def test_a_file_that_is_cut_is_noticed_without_a_call(daemon: ProxyProcess, client: CriClient) -> None:
    made = batch_pod(client).run().create().start()
    path = daemon.state_folder / FILE_NAME
    wait_until(lambda: saved_ids(daemon.state_folder) == {made.container}, "the record on disk")
    os.truncate(path, 5000)
    wait_until(lambda: saved_ids(daemon.state_folder) == {made.container}, "the record in a new file")
