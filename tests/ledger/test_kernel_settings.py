"""KernelSettings: set, saved before, and given back."""

from __future__ import annotations

import json
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from runtimeproxy.ledger import kernel_settings as module
from runtimeproxy.ledger.kernel_settings import KernelSettings, SettingChange
from runtimeproxy.restore.command import restore_kernel_settings
from runtimeproxy.restore.plan import Line, Status

IDENTITY, CORE = "kernel.sched_group_identity_enabled", "kernel.sched_core"


class Kernel:
    """Files in place of the kernel's, and the daemons that come one after the other."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "sys/kernel").mkdir(parents=True)
        self.state = folder / "state"
        self.write(IDENTITY, "0")
        self.write(CORE, "1")

    def file(self, name: str) -> Path:
        return self.folder / "sys" / name.replace(".", "/")

    def write(self, name: str, value: str) -> None:
        self.file(name).write_text(value + "\n")

    def texts(self) -> tuple[str, str]:
        return self.file(IDENTITY).read_text(), self.file(CORE).read_text()

    def daemon(self, boot_id: str = "boot") -> KernelSettings:
        return KernelSettings(self.state, boot_id, self.folder / "sys")


@pytest.fixture
def kernel(tmp_path: Path) -> Kernel:
    return Kernel(tmp_path)


WANTED = {CORE: 0, IDENTITY: 1}


def test_they_are_set_in_order_and_given_back(kernel: Kernel) -> None:
    sysctls = kernel.daemon()
    assert sysctls.apply(WANTED) == (SettingChange(CORE, "1", "0"), SettingChange(IDENTITY, "0", "1"))
    assert kernel.texts() == ("1\n", "0\n")
    assert sysctls.apply(WANTED) == ()
    # The kernel refuses one while the other is on.
    assert sysctls.apply({}) == (SettingChange(IDENTITY, "1", "0"), SettingChange(CORE, "0", "1"))
    assert kernel.texts() == ("0\n", "1\n")
    assert sysctls.apply({}) == ()


def test_the_next_process_gives_them_back(kernel: Kernel) -> None:
    kernel.daemon().apply(WANTED)
    kernel.daemon().apply(WANTED)
    kernel.daemon().apply({})
    assert kernel.texts() == ("0\n", "1\n")


def test_while_a_policy_has_no_answer_they_stay(kernel: Kernel) -> None:
    kernel.daemon().apply(WANTED)
    assert kernel.daemon().apply({}, releases=()) == ()
    assert kernel.texts() == ("1\n", "0\n")


@pytest.mark.parametrize("name", ["{outside}", "kernel/../../outside", "..outside", "kernel..", "kernel", ""])
def test_a_saved_name_leads_to_no_other_file(kernel: Kernel, name: str) -> None:
    outside = kernel.folder / "outside"
    outside.write_text("1\n")
    kernel.daemon().apply(WANTED)
    saved = kernel.state / "sysctls.json"
    document = json.loads(saved.read_text())
    poisoned = {name.format(outside=outside): {"original": "0", "written": "1"}}
    saved.write_text(json.dumps({**document, "sysctls": poisoned}))
    sysctls = kernel.daemon()
    assert sysctls.planned() == sysctls.apply({}) == ()
    assert outside.read_text() == "1\n"
    assert "is not the name of a sysctl" in sysctls.files[0].unusable


def test_after_a_reboot_nothing_of_before_counts(kernel: Kernel) -> None:
    kernel.daemon().apply(WANTED)
    assert kernel.daemon("another boot").apply({}) == ()
    assert kernel.texts() == ("1\n", "0\n")


def test_the_original_is_saved_before_the_first_write(kernel: Kernel) -> None:
    """A process that is killed between the two gives nothing back that it has not written."""
    kernel.file(CORE).unlink()
    kernel.state.mkdir()
    (kernel.state / "sysctls.json.new").mkdir()  # nothing can be saved
    (change,) = kernel.daemon().apply(WANTED)
    assert change.name == IDENTITY
    assert change.error
    assert kernel.file(IDENTITY).read_text() == "0\n"


def test_what_another_program_has_written_stays(kernel: Kernel) -> None:
    sysctls = kernel.daemon()
    sysctls.apply({CORE: 0})
    kernel.write(CORE, "2")
    assert sysctls.apply({}) == ()
    assert kernel.file(CORE).read_text() == "2\n"


def test_a_foreign_value_is_overwritten_while_it_is_wanted_and_is_no_original(kernel: Kernel) -> None:
    sysctls = kernel.daemon()
    sysctls.apply({CORE: 0})
    kernel.write(CORE, "2")
    assert sysctls.apply({CORE: 0}) == (SettingChange(CORE, "2", "0"),)
    sysctls.apply({})
    assert kernel.file(CORE).read_text() == "1\n"


def test_restore_gives_them_back(kernel: Kernel) -> None:
    kernel.daemon().apply(WANTED)
    planned = restore_kernel_settings(kernel.daemon(), dry_run=True)
    assert planned == (Line("sysctl", IDENTITY, "1", "0"), Line("sysctl", CORE, "0", "1"))
    assert kernel.texts() == ("1\n", "0\n")
    done = restore_kernel_settings(kernel.daemon(), dry_run=False)
    assert done == tuple(replace(each, status=Status.RESTORED) for each in planned)
    assert kernel.texts() == ("0\n", "1\n")
    assert restore_kernel_settings(kernel.daemon(), dry_run=False) == ()


def test_one_that_the_kernel_lacks_is_left_out(kernel: Kernel) -> None:
    assert kernel.daemon().apply({"kernel.none": 1}) == ()


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"boot_id": "boot"}', '{"boot_id": "boot", "sysctls": {"a": 1}}']
)
def test_a_broken_file_is_no_state_and_is_said(kernel: Kernel, text: str) -> None:
    kernel.state.mkdir()
    (kernel.state / "sysctls.json").write_text(text)
    daemon = kernel.daemon()
    assert daemon.apply({}) == ()
    assert daemon.files[0].unusable.startswith(f"{kernel.state / 'sysctls.json'} is not usable: what ")
    kernel.daemon().apply(WANTED)
    assert kernel.texts() == ("1\n", "0\n")


@contextmanager
def no_descriptors() -> Iterator[None]:
    """Lets no file be opened."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_saved_originals_that_cannot_be_read_just_now_are_not_forgotten(
    kernel: Kernel, caplog: pytest.LogCaptureFixture
) -> None:
    """Otherwise what the process before has written would become the original."""
    kernel.daemon().apply(WANTED)
    kernel.write(IDENTITY, "0")  # reset by an administrator
    next_daemon = kernel.daemon()
    with no_descriptors():
        (failed,) = next_daemon.apply(WANTED)
        assert [each.error for each in next_daemon.planned()] == [failed.error]
        assert [each.error for each in next_daemon.verify()] == [failed.error]
    assert failed.name.endswith("sysctls.json")
    assert "Too many open files" in failed.error
    assert kernel.texts() == ("0\n", "0\n")
    assert "sysctls are left as they are" in caplog.text
    next_daemon.apply(WANTED)
    next_daemon.apply({})
    assert kernel.texts() == ("0\n", "1\n")


def test_restore_reports_originals_that_cannot_be_read(kernel: Kernel) -> None:
    kernel.daemon().apply(WANTED)
    saved = kernel.state / "sysctls.json"
    text = saved.read_bytes()
    saved.unlink()
    saved.symlink_to(saved)
    for dry_run in (True, False):
        (line,) = restore_kernel_settings(kernel.daemon(), dry_run=dry_run)
        assert (line.field, line.status) == (str(saved), Status.FAILED)
    assert kernel.texts() == ("1\n", "0\n")
    saved.unlink()
    saved.write_bytes(text)
    restore_kernel_settings(kernel.daemon(), dry_run=False)
    assert kernel.texts() == ("0\n", "1\n")


def test_a_sysctl_that_cannot_be_read_just_now_is_given_back_later(kernel: Kernel) -> None:
    sysctls = kernel.daemon()
    sysctls.apply(WANTED)
    with no_descriptors():
        failed = sysctls.apply({})
    assert {each.name for each in failed} == WANTED.keys()
    assert all("Too many open files" in each.error for each in failed)
    sysctls.apply({})
    assert kernel.texts() == ("0\n", "1\n")


def test_a_write_that_hangs_holds_no_other_thread(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_WAIT_S", 0.01)
    sysctls = kernel.daemon()
    with sysctls._alone():
        (failed,) = sysctls.apply(WANTED)
    assert "another write has not ended" in failed.error
    assert kernel.texts() == ("0\n", "1\n")
