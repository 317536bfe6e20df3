"""Registration files: whatever is written there, the daemon lives and good servers stay in use."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.daemon.driving import pod
from tests.defects.conftest import MakeNode
from tests.defects.node import Node, Registrations, asked_about
from tests.hooks.remote.hook_server_process import HookServerProcess
from tests.lab.cri_client import CriClient
from tests.lab.deadline import wait_until
from tests.lab.programs import need_user_namespaces

GONE_S = 25.0
"""A change counts within a second; a busy machine gets more. Koordinator's proxy takes up to 60."""

BAD = {
    "empty": b"",
    "blank": b" \n",
    "half": b'{"remote-endpoint": "/run/x.sock", "runtime-ho',
    "no_object": b"[]",
    "null": b"null",
    "no_text": b"\xff\xfe\x00",
    "wrong_types": b'{"remote-endpoint": 1, "runtime-hooks": "PreRunPodSandbox"}',
    "no_endpoint": b'{"runtime-hooks": ["PreRunPodSandbox"]}',
}


def write_in_place(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def rename_over(path: Path, content: bytes) -> None:
    path.with_suffix(".new").write_bytes(content)
    path.with_suffix(".new").rename(path)


def is_asked(server: HookServerProcess, client: CriClient, hook: str = "PreRunPodSandboxHook") -> bool:
    """Whether the server is asked about one more pod."""
    return bool(asked_about(server, pod(client).run().create(), hook))


@pytest.mark.defect(1)
@pytest.mark.parametrize("content", BAD.values(), ids=BAD.keys())
def test_a_new_bad_file(
    registrations: Registrations, client: CriClient, server: HookServerProcess, content: bytes
) -> None:
    """`touch x.json` is the first step of the instructions that people follow."""
    registrations.register(server, "PreRunPodSandbox")
    path = registrations.new_path()
    write_in_place(path, content)
    assert is_asked(server, client)
    registrations.node.wait_for_log(str(path))
    assert is_asked(server, client)


@pytest.mark.defect(1)
@pytest.mark.parametrize("write", [write_in_place, rename_over])
def test_a_bad_file_replaces_no_good_one(
    registrations: Registrations,
    client: CriClient,
    server: HookServerProcess,
    write: Callable[[Path, bytes], None],
) -> None:
    path = registrations.register(server, "PreRunPodSandbox")
    write(path, BAD["half"])
    registrations.node.wait_for_log("the last good registration of this name stays")
    assert is_asked(server, client)


@pytest.mark.defect(1)
def test_bad_files_at_the_start(new_node: MakeNode) -> None:
    texts = {f"{name}.json": content.decode(errors="ignore") for name, content in BAD.items()}
    made = new_node(hook_servers=texts)
    made.runtime.start()
    made.proxy.start()
    with CriClient(made.proxy.socket) as client:
        pod(client).run().create()
    assert made.proxy.alive()


@pytest.mark.defect(1)
def test_good_files_that_appear_under_load(
    registrations: Registrations, client: CriClient, server: HookServerProcess
) -> None:
    """16 callers, 20 new files, then 20 that are renamed over them."""
    paths = [registrations.new_path() for _ in range(20)]
    is_over = threading.Event()

    def call() -> int:
        with CriClient(registrations.node.proxy.socket) as caller:
            count = 0
            while not is_over.is_set():
                pod(caller).run()
                count += 1
        return count

    with ThreadPoolExecutor(16) as pool:
        callers = [pool.submit(call) for _ in range(16)]
        try:
            for path in paths:
                server.register(path.parent, path.name, "PreRunPodSandbox")
            for path in paths:
                registrations.wait_for_use(path)
            for path in paths:
                other = server.register(path.parent, f"{path.stem}.new", "PreRunPodSandbox", timeout_s=20)
                other.rename(path)
            for path in paths:
                registrations.wait_for_use(path, 2)
        finally:
            is_over.set()
    assert all(caller.result() for caller in callers)
    assert len(asked_about(server, pod(client).run())) == len(paths)


@pytest.mark.defect(19)
def test_a_deleted_file(registrations: Registrations, client: CriClient, server: HookServerProcess) -> None:
    path = registrations.register(server, "PreRunPodSandbox")
    assert is_asked(server, client)
    path.unlink()
    wait_until(lambda: not is_asked(server, client), "no question", GONE_S)


@pytest.mark.defect(19)
@pytest.mark.parametrize("write", [write_in_place, rename_over])
def test_an_edit_that_keeps_an_old_time(
    registrations: Registrations,
    client: CriClient,
    server: HookServerProcess,
    write: Callable[[Path, bytes], None],
) -> None:
    """As `cp -p`, `rsync -t` and `tar` leave it."""
    path = registrations.register(server, "PreRunPodSandbox")
    values = {**json.loads(path.read_text()), "runtime-hooks": ["PreCreateContainer"]}
    write(path, json.dumps(values).encode())
    os.utime(path, (1_000_000_000, 1_000_000_000))
    wait_until(lambda: is_asked(server, client, "PreCreateContainerHook"), "the new hook", GONE_S)
    assert not is_asked(server, client)


@pytest.mark.defect(20)
def test_a_misspelt_name_is_told(registrations: Registrations, server: HookServerProcess) -> None:
    path = registrations.register(server, "PreRunPodSandbx", failure_policy="Fial")
    registrations.node.wait_for_log(f"{path}: runtime-hooks: no hook is named 'PreRunPodSandbx'")
    registrations.node.wait_for_log(f"{path}: failure-policy: 'Fial' is unknown")


@pytest.mark.defect(20)
def test_without_inotify_files_count_nevertheless(new_node: MakeNode, server: HookServerProcess) -> None:
    """The limit is of a user namespace of the daemon's own, so that no other program has it too."""
    need_user_namespaces()
    limit = 'echo 0 > /proc/sys/user/max_inotify_instances && exec "$@"'
    made: Node = new_node(wrapper=("unshare", "--user", "--map-root-user", "sh", "-c", limit, "sh"))
    made.runtime.start()
    made.proxy.start()
    made.wait_for_log("no events from the kernel")
    server.register(made.proxy.hook_folder, "late.json", "PreRunPodSandbox")
    made.wait_for_log("hook server late.json is used")
    with CriClient(made.proxy.socket) as client:
        assert is_asked(server, client)
