"""What the kernel is asked for the relay's thread, read back from the kernel."""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, TypeVar

import pytest

from runtimeproxy.process import SLICE_NS, exact_timers, wake_soon
from tests.lab.programs import missing

_ATTRIBUTES = struct.Struct("=IIQiIQQQ")
_GETATTR = {"x86_64": 315, "aarch64": 275}
_KERNEL = tuple(int(part) for part in platform.release().split(".")[:2])

Result = TypeVar("Result")


class Seen(NamedTuple):
    policy: int
    nice: int
    slice_ns: int


def seen() -> Seen:
    """How the calling thread is scheduled."""
    buffer = ctypes.create_string_buffer(_ATTRIBUTES.size)
    number = _GETATTR[os.uname().machine]
    assert ctypes.CDLL(None).syscall(number, 0, buffer, len(buffer), 0) == 0
    _, policy, _, nice, _, slice_ns, _, _ = _ATTRIBUTES.unpack(buffer.raw)
    return Seen(policy, nice, slice_ns)


def slack() -> str:
    return Path(f"/proc/{threading.get_native_id()}/timerslack_ns").read_text().strip()


def in_thread(work: Callable[[], Result]) -> Result:
    """Runs something in a thread of its own, whose settings end with it."""
    with ThreadPoolExecutor(1) as executor:
        return executor.submit(work).result()


def asked() -> None:
    wake_soon(threading.get_native_id())


needs_syscall = pytest.mark.skipif(
    os.uname().machine not in _GETATTR, reason="the number of sched_getattr is not known here"
)


@needs_syscall
def test_a_short_slice() -> None:
    if _KERNEL < (6, 12):
        missing("this kernel has no slices of a thread's own: Linux has them since 6.12")

    def work() -> tuple[Seen, Seen, Seen]:
        before = seen()
        asked()
        return before, seen(), in_thread(seen)

    before, after, of_child = in_thread(work)
    assert after == before._replace(slice_ns=SLICE_NS)
    assert of_child == before, "threads that it starts have the usual slice"


@needs_syscall
def test_the_priority_stays() -> None:
    def work() -> Seen:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 5)
        asked()
        return seen()

    assert in_thread(work)[:2] == (os.SCHED_OTHER, 5)


def test_a_negative_nice_value_stays_for_threads_that_are_started_later() -> None:
    def work() -> int:
        try:
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), -5)
        except PermissionError:
            pytest.skip("needs CAP_SYS_NICE")
        asked()
        return in_thread(lambda: os.getpriority(os.PRIO_PROCESS, 0))

    assert in_thread(work) == -5


@needs_syscall
def test_another_policy_stays() -> None:
    def work() -> tuple[Seen, Seen]:
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        before = seen()
        asked()
        return before, seen()

    before, after = in_thread(work)
    assert after == before
    assert after.policy == os.SCHED_BATCH


def test_exact_timers() -> None:
    def work() -> tuple[str, str]:
        exact_timers()
        return slack(), in_thread(slack)

    assert in_thread(work) == ("1", "1")


def test_a_thread_that_is_not_there_is_no_error() -> None:
    wake_soon(2**22 + 1)


FREEING = """
import resource
from runtimeproxy.process import give_back_memory, limit_arenas

def resident_bytes():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * resource.getpagesize()

limit_arenas()
blocks = [bytes(1000) for _ in range(50_000)]
kept = blocks[-1:]
full = resident_bytes()
del blocks
give_back_memory()
print(full - resident_bytes())
"""


def test_free_memory_is_given_back() -> None:
    done = subprocess.run([sys.executable, "-c", FREEING], capture_output=True, text=True, check=True)
    # Of 50 MB; without it next to nothing.
    assert int(done.stdout) > 25_000_000
