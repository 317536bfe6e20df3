"""Slices of tasks: one by one with a stand-in for the kernel, and on the kernel of this machine."""

from __future__ import annotations

import errno
import os
from threading import Event, Thread, get_native_id

import pytest

from runtimeproxy.cgroups.processes import KEPT
from runtimeproxy.cgroups.slices import (
    FIELD,
    MARK_NS,
    KernelCalls,
    Scheduling,
    Slices,
    default_slice_ns,
    is_supported,
)
from runtimeproxy.fields.tables import PARAMETERS
from tests.cgroups.slicing import BATCH, FIFO, SlicingKernel

TASK, OTHER = 11, 12
OURS_NS = 1_000_000 + MARK_NS
NO_FOLDER = -1


@pytest.fixture
def kernel() -> SlicingKernel:
    made = SlicingKernel()
    made.start(TASK)
    return made


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def access(kernel: SlicingKernel, clock: Clock | None = None) -> Slices:
    return Slices(kernel, kernel.default, clock or Clock())


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (Scheduling(), "0"),
        (Scheduling(slice_ns=OURS_NS), "1000"),
        (Scheduling(slice_ns=3_000_000 + MARK_NS), "3000"),
        # A program's own, also one of 1 ms.
        (Scheduling(slice_ns=1_000_000), KEPT),
        (Scheduling(slice_ns=700_000), KEPT),
        (Scheduling(FIFO, priority=3), KEPT),
        # SCHED_BATCH, also since it has one of ours, and SCHED_IDLE.
        (Scheduling(BATCH, slice_ns=OURS_NS), "1000"),
        (Scheduling(BATCH), KEPT),
        (Scheduling(5), KEPT),
    ],
)
def test_what_a_task_has(kernel: SlicingKernel, found: Scheduling, text: str) -> None:
    kernel.tasks[TASK] = found
    assert access(kernel).read(TASK, NO_FOLDER) == text


def test_nothing_else_of_a_task_changes(kernel: SlicingKernel) -> None:
    was = kernel.tasks[TASK] = Scheduling(flags=1, nice=-5)
    slices = access(kernel)
    slices.write(TASK, NO_FOLDER, "1000")
    assert kernel.tasks[TASK] == was._replace(slice_ns=OURS_NS)
    assert slices.read(TASK, NO_FOLDER) == "1000"
    slices.write(TASK, NO_FOLDER, "0")
    assert kernel.tasks[TASK] == was


def test_a_task_that_became_a_real_time_one_meanwhile_is_left(kernel: SlicingKernel) -> None:
    kernel.tasks[TASK] = Scheduling(FIFO, priority=3)
    access(kernel).write(TASK, NO_FOLDER, "1000")
    assert kernel.writes == 0


def test_a_task_that_is_a_batch_task_since_gives_it_back(kernel: SlicingKernel) -> None:
    kernel.tasks[TASK] = Scheduling(BATCH, slice_ns=OURS_NS)
    access(kernel).write(TASK, NO_FOLDER, "0")
    assert kernel.tasks[TASK] == Scheduling(BATCH)


def test_the_default_follows_the_number_of_cpus(kernel: SlicingKernel) -> None:
    clock = Clock()
    slices = access(kernel, clock)
    assert slices.read(TASK, NO_FOLDER) == "0"
    # One that sleeps still has the slice of before.
    kernel.tasks[OTHER] = Scheduling(slice_ns=kernel.default_ns)
    kernel.default_ns = 2_100_000
    clock.now_s += 10
    assert [slices.read(each, NO_FOLDER) for each in (TASK, OTHER)] == ["0", "0"]


def test_a_kernel_without_slices(kernel: SlicingKernel) -> None:
    kernel.default_ns = 0
    with pytest.raises(OSError, match="no slices") as caught:
        access(kernel).read(TASK, NO_FOLDER)
    assert caught.value.errno == errno.EINVAL


@pytest.mark.parametrize(
    ("text", "value", "is_same"),
    [
        ("0", 0, False),
        ("1000", 1_000, True),
        ("0 1000", 1_000, False),
        (" 1000", 1_000, True),
        ("", None, True),
    ],
)
def test_the_text_of_a_pod(text: str, value: int | None, *, is_same: bool) -> None:
    """As the ledger reads it back after a crash: tasks that have just come may have none yet."""
    form = PARAMETERS[FIELD].processes
    assert form is not None
    assert form.matches(1_000, text) is is_same
    if value is None:
        with pytest.raises(ValueError, match="0 numbers"):
            form.decode(text)
    else:
        assert form.decode(text) == value


def test_several_slices_are_no_value() -> None:
    form = PARAMETERS[FIELD].processes
    assert form is not None
    with pytest.raises(ValueError, match="2 numbers"):
        form.decode("0 1000 2000")


# --- this machine -------------------------------------------------------------------------------------------


def test_no_task_of_this_process_keeps_what_was_tried() -> None:
    before = KernelCalls().read(0)
    found = default_slice_ns(KernelCalls())
    assert KernelCalls().read(0) == before
    assert is_supported() is (found > 0)


@pytest.mark.skipif(not is_supported(), reason="slices of tasks need Linux 6.12")
def test_a_thread_gets_a_slice_and_hands_it_on() -> None:
    slices, tasks, end = Slices(), list[int](), Event()
    started = [Event(), Event()]

    def second() -> None:
        tasks.append(get_native_id())
        started[1].set()
        end.wait(30)

    def first() -> None:
        tasks.append(get_native_id())
        started[0].set()
        goes_on.wait(30)
        Thread(target=second, daemon=True).start()
        end.wait(30)

    goes_on = Event()
    Thread(target=first, daemon=True).start()
    try:
        assert started[0].wait(30)
        assert slices.read(tasks[0], NO_FOLDER) == "0"
        was = KernelCalls().read(tasks[0])
        slices.write(tasks[0], NO_FOLDER, "1000")
        goes_on.set()
        assert started[1].wait(30)
        assert [slices.read(each, NO_FOLDER) for each in tasks] == ["1000", "1000"]
        for each in tasks:
            slices.write(each, NO_FOLDER, "0")
        assert [KernelCalls().read(each) for each in tasks] == [was, was]
        assert slices.read(os.getpid(), NO_FOLDER) == "0"
    finally:
        goes_on.set()
        end.set()
