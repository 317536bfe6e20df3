"""Groups of tasks: the cookies that they get, with a stand-in for the kernel, and the call itself."""

from __future__ import annotations

import errno
import os
import re
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import get_native_id

import pytest

from runtimeproxy.cgroups.core_scheduling import (
    FIELD,
    MOST_HOLDERS,
    NO_GROUP,
    UNREADABLE,
    Command,
    CoreGroups,
    Scope,
    cookies_of_groups,
    is_supported,
    prctl,
)
from runtimeproxy.cgroups.mounts import DEFAULT_ROOT
from runtimeproxy.cgroups.paths import cgroup_path
from runtimeproxy.cgroups.writer import CgroupWriter, WriteOutcome
from tests.cgroups.cookies import Cookies
from tests.lab.deadline import wait_until
from tests.lab.programs import need_controllers_of_v1

FIRST, SECOND, THIRD, OTHER, ANOTHER, MANY = range(1 << 22, (1 << 22) + 6)
"""Numbers of tasks, above those that this machine can have: one of them may be a thread of this process."""


@pytest.mark.parametrize(
    ("found", "known", "cookies"),
    [
        ({}, {}, {}),
        ({"a": [[1], [1]], "b": [[2]]}, {}, {"a": 1, "b": 2}),
        ({"a": [[0]], "b": []}, {}, {}),
        # A task of it may lack the cookie, and a program have made one of its own.
        ({"a": [[0, 1], [1, 7]]}, {}, {"a": 1}),
        # A process was killed while it moved a container from group a to group b, or had just done so.
        ({"a": [[1], [1]], "b": [[1, 2]]}, {}, {"a": 1, "b": 2}),
        ({"a": [[9], [9], [2]], "b": [[2], [2]]}, {}, {"a": 9, "b": 2}),
        # Two groups never share one, whatever the tasks carry.
        ({"a": [[1]], "b": [[1], [1]]}, {}, {"b": 1}),
        # What is known stays.
        ({"a": [[1], [1]], "b": [[1]]}, {"b": 1}, {"b": 1}),
        ({"a": [[3], [3]]}, {"a": 1}, {"a": 1}),
    ],
)
def test_cookies_of_groups(
    found: Mapping[str, Iterable[Iterable[int]]], known: Mapping[str, int], cookies: Mapping[str, int]
) -> None:
    assert cookies_of_groups(found, known) == cookies


@pytest.fixture
def kernel() -> Cookies:
    return Cookies()


def test_groups(kernel: Cookies) -> None:
    groups = CoreGroups(kernel)
    for task, process in ((FIRST, FIRST), (SECOND, FIRST), (OTHER, OTHER), (ANOTHER, ANOTHER)):
        kernel.start(task, process)
    groups.write(FIRST, 0, "web")
    groups.write(OTHER, 0, "web")
    groups.write(ANOTHER, 0, "batch")
    assert kernel.made == 2
    assert len(set(kernel.of(FIRST, SECOND, OTHER))) == 1, "all threads of a process"
    assert 0 != kernel.cookies[ANOTHER] != kernel.cookies[FIRST]
    assert [groups.read(task, 0) for task in (FIRST, SECOND, OTHER, ANOTHER)] == [
        "web",
        "web",
        "web",
        "batch",
    ]
    groups.write(FIRST, 0, NO_GROUP)
    assert [groups.read(task, 0) for task in (FIRST, SECOND, OTHER)] == ["none", "none", "web"]
    groups.write(OTHER, 0, "batch")
    assert kernel.of(OTHER) == kernel.of(ANOTHER)


def test_no_thread_of_this_process_keeps_a_cookie(kernel: Cookies) -> None:
    groups = CoreGroups(kernel)
    kernel.start(FIRST)
    groups.write(FIRST, 0, "web")
    kernel.start(SECOND)
    groups.write(SECOND, 0, "web")
    assert kernel(Command.GET, 0, Scope.THREAD) == 0
    assert kernel.cookies.keys() == {FIRST, SECOND}


def test_the_group_is_found_by_a_task_that_lives(kernel: Cookies) -> None:
    groups = CoreGroups(kernel)
    kernel.start(FIRST)
    groups.write(FIRST, 0, "web")
    for task in range(MANY, MANY + 2 * MOST_HOLDERS):
        kernel.start(task, parent=FIRST)
        assert groups.read(task, 0) == "web"
    kernel.end(FIRST, *range(MANY, MANY + 2 * MOST_HOLDERS - 1))
    kernel.start(SECOND)
    groups.write(SECOND, 0, "web")
    assert kernel.made == 1
    assert kernel.of(SECOND) == kernel.of(MANY + 2 * MOST_HOLDERS - 1)


def test_a_number_that_is_given_again_is_another_cookie(kernel: Cookies) -> None:
    """The last task of a group has ended, and the kernel gives its cookie's number to another group."""
    groups = CoreGroups(kernel)
    kernel.start(FIRST)
    groups.write(FIRST, 0, "web")
    number = kernel.cookies[FIRST]
    kernel.end(FIRST)
    kernel.start(OTHER)
    groups.write(OTHER, 0, "batch")
    assert kernel.cookies[OTHER] == number
    assert groups.read(OTHER, 0) == "batch"
    kernel.start(SECOND)
    groups.write(SECOND, 0, "web")
    assert kernel.cookies[SECOND] != number
    assert (groups.read(SECOND, 0), groups.read(OTHER, 0)) == ("web", "batch")


def test_a_number_of_a_task_that_has_ended(kernel: Cookies) -> None:
    """Another task has it now, without the cookie."""
    groups = CoreGroups(kernel)
    kernel.start(FIRST)
    groups.write(FIRST, 0, "web")
    kernel.end(FIRST)
    kernel.start(FIRST)
    kernel.start(SECOND)
    groups.write(SECOND, 0, "web")
    assert (groups.read(FIRST, 0), groups.read(SECOND, 0)) == ("none", "web")
    with pytest.raises(ProcessLookupError):
        groups.write(MANY, 0, "web")


def test_a_cookie_that_a_program_has_made(kernel: Cookies) -> None:
    groups = CoreGroups(kernel)
    kernel.start(FIRST)
    kernel.cookies[FIRST] = 7
    assert groups.read(FIRST, 0) == "cookie:7"
    groups.write(FIRST, 0, "web")
    assert groups.read(FIRST, 0) == "web"
    assert kernel.of(FIRST) != [7]


def test_after_a_restart(kernel: Cookies) -> None:
    before = CoreGroups(kernel)
    for task in (FIRST, SECOND, OTHER):
        kernel.start(task)
    for task, group in ((FIRST, "web"), (SECOND, "web"), (OTHER, "batch")):
        before.write(task, 0, group)
    cookies = dict(kernel.cookies)
    groups = CoreGroups(kernel)
    asked: list[str] = []

    def booked(group: str) -> dict[str, list[str]]:
        asked.append(group)
        found = {"web": [FIRST, SECOND], "batch": [OTHER]} if not group else {}
        return {name: [groups.read(task, 0) for task in tasks] for name, tasks in found.items()}

    groups.booked = booked
    assert [groups.read(task, 0) for task in (OTHER, FIRST)] == ["batch", "web"]
    kernel.start(THIRD)
    groups.write(THIRD, 0, "web")
    assert {task: kernel.cookies[task] for task in cookies} == cookies, "none has lost its cookie"
    assert kernel.of(THIRD) == kernel.of(FIRST)
    assert asked == [""]
    kernel.start(ANOTHER)
    groups.write(ANOTHER, 0, "new")
    assert asked == ["", "new"]
    assert kernel.made == 3


def test_a_new_container_comes_before_anything_is_read(kernel: Cookies) -> None:
    before = CoreGroups(kernel)
    kernel.start(FIRST)
    before.write(FIRST, 0, "web")
    groups = CoreGroups(kernel)
    groups.booked = lambda group: {"web": [groups.read(FIRST, 0)]}
    kernel.start(SECOND)
    groups.write(SECOND, 0, "web")
    assert kernel.of(FIRST) == kernel.of(SECOND)


def test_what_is_gone_is_forgotten(kernel: Cookies) -> None:
    groups = CoreGroups(kernel)
    for task in range(MANY, MANY + 100):
        kernel.start(task)
        groups.write(task, 0, f"pod:{task}")
        kernel.end(task)
    assert len(groups._cookies) == len(groups._holders) == 1
    assert len(groups._groups) == 2


def test_nothing_is_kept_of_cookies_that_programs_make(kernel: Cookies) -> None:
    groups = CoreGroups(kernel)
    groups.booked = lambda group: {"web": [groups.read(FIRST, 0)]}
    kernel.start(FIRST)
    for number in range(1, 100):
        kernel.cookies[FIRST] = number
        groups.read(FIRST, 0)
        groups.write(FIRST, 0, f"pod:{number}")
        kernel.cookies[FIRST] = 1000 + number
        groups.read(FIRST, 0)
    assert len(groups._holders) <= 2
    assert len(groups._groups) <= 3


def test_many_threads_make_one_cookie(kernel: Cookies) -> None:
    groups = CoreGroups(kernel)
    for task in range(MANY, MANY + 80):
        kernel.start(task)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda task: groups.write(task, 0, "web"), range(MANY, MANY + 80)))
    assert kernel.made == 1
    assert len(set(kernel.of(*range(MANY, MANY + 80)))) == 1


def test_own_threads_are_never_in_a_group(kernel: Cookies) -> None:
    groups = CoreGroups(kernel)
    for task in (os.getpid(), get_native_id()):
        with pytest.raises(ProcessLookupError):
            groups.read(task, 0)


def test_no_right_to_trace(kernel: Cookies) -> None:
    groups = CoreGroups(kernel)
    kernel.start(FIRST)
    kernel.refused.add(FIRST)
    assert groups.read(FIRST, 0) == UNREADABLE
    with pytest.raises(PermissionError):
        groups.write(FIRST, 0, "web")


def test_a_process_that_was_started_in_a_group_takes_nothing_away(kernel: Cookies) -> None:
    """Its threads have its cookie, so that they cannot take one away; the kernel has no other way."""
    groups = CoreGroups(kernel)
    kernel.start(FIRST)
    groups.write(FIRST, 0, "web")

    def calls(command: Command, task: int, scope: Scope) -> int:
        return 9 if (command, task) == (Command.GET, 0) else kernel(command, task, scope)

    groups._calls = calls
    with pytest.raises(OSError, match="started with a cookie"):
        groups.write(FIRST, 0, NO_GROUP)
    assert kernel.cookies[FIRST]


def test_the_call() -> None:
    """Kernels without core scheduling answer EINVAL, and machines whose cores have one thread ENODEV."""
    try:
        assert prctl(Command.GET, 0, Scope.THREAD) == 0
    except OSError as error:
        assert error.errno in (errno.EINVAL, errno.ENODEV)  # noqa: PT017 - both are right
        assert not is_supported()
    else:
        assert is_supported()
    with pytest.raises(OSError, match=r"Invalid argument|No such device"):
        prctl(Command.SHARE_FROM, 0, Scope.PROCESS_GROUP)


THREADS = """
import os, sys, threading
sys.stdin.readline()
for _ in range(4):
    threading.Thread(target=threading.Event().wait, daemon=True).start()
os.fork()
os.write(1, b"r")
threading.Event().wait()
"""


@pytest.fixture
def cgroup() -> Iterator[Path]:
    """A real cgroup, of version 1, with one below."""
    need_controllers_of_v1("pids")
    top = DEFAULT_ROOT / "pids" / f"test-{uuid.uuid4().hex[:12]}"
    below = top / uuid.uuid4().hex / "init.scope"
    below.mkdir(parents=True)
    yield below.parent
    folders = (below, below.parent)

    def pids() -> list[int]:
        return [int(pid) for each in folders for pid in (each / "cgroup.procs").read_text().split()]

    for pid in pids():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not pids(), "the end of its processes")
    for folder in (*folders, top):
        folder.rmdir()


def test_all_threads_of_real_processes(kernel: Cookies, cgroup: Path) -> None:
    """Only the call is not the kernel's: with threads, with forks, and in cgroups below."""
    children = []
    for folder in (cgroup, cgroup / "init.scope"):
        child = subprocess.Popen(
            (sys.executable, "-c", THREADS),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            process_group=0,
        )
        children.append(child)
        (folder / "cgroup.procs").write_text(str(child.pid))
        assert child.stdin is not None
        assert child.stdout is not None
        with child.stdin, child.stdout:
            child.stdin.write(b"\n")
            child.stdin.flush()
            assert child.stdout.read(2) == b"rr"
    # Forked in the meantime, or moved.
    tasks = [
        int(each) for file in (cgroup, cgroup / "init.scope") for each in (file / "tasks").read_text().split()
    ]
    for task in tasks:
        status = Path(f"/proc/{task}/status").read_text()
        kernel.start(task, int(re.findall(r"^Tgid:\t(\d+)$", status, re.MULTILINE)[0]))
    groups = CoreGroups(kernel)
    writer = CgroupWriter(groups=groups)
    name = f"/{cgroup.parent.name}/{cgroup.name}"
    path = cgroup_path(name)
    (result,) = writer.write(name, {FIELD: "group:web"})
    assert (result.outcome, result.error) == (WriteOutcome.WRITTEN, "")
    assert len(tasks) >= 12
    assert len(set(kernel.of(*tasks)) - {0}) == len(set(kernel.of(*tasks))) == 1
    assert writer.look(path, (FIELD,))[FIELD].text == "group:web\n"
    (result,) = writer.write(name, {FIELD: NO_GROUP})
    assert (set(kernel.of(*tasks)), result.outcome) == ({0}, WriteOutcome.WRITTEN)
    for child in children:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
