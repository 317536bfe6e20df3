"""Sysctls and other settings of the kernel: set, saved before, and given back."""

from __future__ import annotations

import errno
import json
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from runtimeproxy.fields.anolis import ANOLIS
from runtimeproxy.ledger import kernel_settings as module
from runtimeproxy.ledger.foreign import OVERWRITES
from runtimeproxy.ledger.journal import read_boot_id
from runtimeproxy.ledger.kernel_settings import DROP_IN, KernelSettings, SettingChange
from runtimeproxy.ledger.unapplied import UnappliedCause
from runtimeproxy.restore.command import restore_kernel_settings
from runtimeproxy.restore.plan import Line, Status
from tests.lab.programs import REPOSITORY
from tests.lab.sysctl import FILE, NAME, changeable_sysctl

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


REAP, PAGE_CACHE = "mm.memcg_reaper.reap_background", "mm.pagecache_limit.enabled"
WMARK = "kernel.sched_idle_saver_wmark"
HRTICK, EXPEL = "sched_features.HRTICK", "sched_features.ID_ABSOLUTE_EXPEL"


class Features(KernelSettings):
    """Lists the scheduler's features in a file as debugfs does: what is written is one word of the list."""

    def _write(self, name: str, value: str) -> None:
        (path, *_) = [each for each in self._paths(name) if each.exists()]
        before = path.read_text()
        super()._write(name, value)
        if "features" in path.name:
            word = path.read_text().strip()
            feature = word.removeprefix("NO_")
            words = [word if each.removeprefix("NO_") == feature else each for each in before.split()]
            path.write_text(" ".join(words) + "\n")


class Anolis(Kernel):
    """The files of such a kernel below sysfs."""

    def __init__(self, folder: Path, features: str = "kernel/debug/sched/features") -> None:
        super().__init__(folder)
        self.sysfs = folder / "sysfs"
        self.features = self.sysfs / features
        for file, text in (
            (self.sysfs / "kernel/mm/memcg_reaper/reap_background", "0\n"),
            (self.sysfs / "kernel/mm/pagecache_limit/enabled", "1\n"),
            (self.features, "GENTLE_FAIR_SLEEPERS NO_HRTICK ID_ABSOLUTE_EXPEL\n"),
        ):
            file.parent.mkdir(parents=True)
            file.write_text(text)

    def daemon(self, boot_id: str = "boot") -> KernelSettings:
        return Features(self.state, boot_id, self.folder / "sys", sysfs=self.sysfs)

    def settings(self) -> list[str]:
        mm = self.sysfs / "kernel/mm"
        files = mm / "memcg_reaper/reap_background", mm / "pagecache_limit/enabled", self.features
        return [each.read_text().strip() for each in files]


BEFORE = ["0", "1", "GENTLE_FAIR_SLEEPERS NO_HRTICK ID_ABSOLUTE_EXPEL"]
AFTER = ["1", "0", "GENTLE_FAIR_SLEEPERS HRTICK NO_ID_ABSOLUTE_EXPEL"]
ALL = {REAP: 1, CORE: 0, PAGE_CACHE: 0, HRTICK: 1, EXPEL: 0}


@pytest.fixture(params=["kernel/debug/sched/features", "kernel/debug/sched_features"])
def anolis(tmp_path: Path, request: pytest.FixtureRequest) -> Anolis:
    return Anolis(tmp_path, request.param)


def test_other_settings_are_set_and_given_back(anolis: Anolis) -> None:
    settings = anolis.daemon()
    assert [each.name for each in settings.apply(ALL)] == list(ALL)
    assert (anolis.settings(), anolis.texts()) == (AFTER, ("0\n", "0\n"))
    assert (settings.apply(ALL), settings.verify(), settings.unapplied) == ((), (), {})
    # By the next process.
    anolis.daemon().apply({})
    assert (anolis.settings(), anolis.texts()) == (BEFORE, ("0\n", "1\n"))


def test_only_features_that_differ_are_written(anolis: Anolis) -> None:
    settings = anolis.daemon()
    wanted = {HRTICK: 0, EXPEL: 0, "sched_features.GENTLE_FAIR_SLEEPERS": 1}
    assert settings.apply(wanted) == (SettingChange(EXPEL, "1", "0"),)
    assert settings.written() == {name: str(value) for name, value in wanted.items()}


def test_what_the_kernel_lacks_is_said_unless_it_is_off_there_anyway(kernel: Kernel) -> None:
    settings = KernelSettings(kernel.state, "boot", kernel.folder / "sys", sysfs=kernel.folder)
    settings.apply({REAP: 1, PAGE_CACHE: 0, HRTICK: 1, EXPEL: 0, WMARK: 7})
    reasons = {name: each.reason for name, each in settings.unapplied.items()}
    assert reasons == {
        REAP: f"the kernel has no {REAP}: only {ANOLIS} have {REAP}",
        HRTICK: "the kernel has no scheduler feature HRTICK, or debugfs is not mounted",
        WMARK: f"the kernel has no such sysctl: only {ANOLIS} have {WMARK}",
    }
    settings.apply({})
    assert settings.unapplied == {}


@pytest.mark.parametrize(
    "name",
    [
        "{outside}",
        "sched_features.../../outside",
        "sched_features.NO_HRTICK",
        "sched_features.",
        "mm.memcg_reaper.reap",
        CORE,
        "",
    ],
)
def test_a_saved_setting_leads_to_no_other_file(anolis: Anolis, name: str) -> None:
    """Poisoned before a restart: nothing of the file counts, and the next save is a good one."""
    outside = anolis.folder / "outside"
    outside.write_text("1\n")
    anolis.daemon().apply({REAP: 1, CORE: 0})
    saved = anolis.state / "kernel_settings.json"
    document = json.loads(saved.read_text())
    poisoned = {name.format(outside=outside): {"original": "0", "written": "1"}}
    saved.write_text(json.dumps({**document, "kernel_settings": {**document["kernel_settings"], **poisoned}}))
    settings = anolis.daemon()
    (line,) = settings.planned()  # the sysctl's file is good
    assert line.name == CORE
    assert "is not the name of a kernel setting" in settings.files[1].unusable
    settings.apply({HRTICK: 1})
    assert (outside.read_text(), anolis.texts()) == ("1\n", ("0\n", "1\n"))
    after = anolis.daemon()
    assert after.planned() == (SettingChange(HRTICK, "1", "0"),)
    assert [each.unusable for each in after.files] == ["", ""]


def test_a_setting_does_not_count_as_a_sysctl(anolis: Anolis) -> None:
    anolis.daemon().apply({CORE: 0})
    saved = anolis.state / "sysctls.json"
    text = saved.read_text()
    saved.write_text(text.replace(CORE, REAP))
    settings = anolis.daemon()
    assert settings.planned() == ()
    assert f"'{REAP}' is not the name of a sysctl" in settings.files[0].unusable


def test_a_version_that_knows_sysctls_alone_leaves_the_others_to_the_next(anolis: Anolis) -> None:
    anolis.daemon().apply(ALL)
    saved = anolis.state / "sysctls.json"
    document = json.loads(saved.read_text())
    assert document == {"boot_id": "boot", "sysctls": {CORE: {"original": "1", "written": "0"}}}
    saved.write_text(json.dumps({"boot_id": "boot", "sysctls": {}}))  # it has given them back
    anolis.write(CORE, "1")
    anolis.daemon().apply({})
    assert (anolis.settings(), anolis.texts()) == (BEFORE, ("0\n", "1\n"))


@pytest.mark.parametrize("wanted", [ALL, {}])
def test_killed_between_the_save_and_the_write(anolis: Anolis, wanted: dict[str, int]) -> None:
    class KilledError(Exception):
        pass

    class Killed(Features):
        def _write(self, name: str, value: str) -> None:
            raise KilledError

    for name in ALL:
        with pytest.raises(KilledError):
            Killed(anolis.state, "boot", anolis.folder / "sys", sysfs=anolis.sysfs).apply({name: ALL[name]})
    assert anolis.settings() == BEFORE
    settings = anolis.daemon()
    settings.apply(wanted)
    assert anolis.settings() == (AFTER if wanted else BEFORE)
    settings.apply({})
    assert (anolis.settings(), anolis.texts()) == (BEFORE, ("0\n", "1\n"))


def test_another_program_that_keeps_writing_a_feature_has_it(
    anolis: Anolis, caplog: pytest.LogCaptureFixture
) -> None:
    settings = anolis.daemon()
    settings.apply({"sched_features.GENTLE_FAIR_SLEEPERS": 1, EXPEL: 1})
    settings.apply({EXPEL: 0})
    anolis.features.write_text(BEFORE[2])
    assert settings.verify() == (SettingChange(EXPEL, "1", "0"),), "back at the original is no other program"
    file = anolis.sysfs / "kernel/mm/memcg_reaper/reap_background"
    settings.apply({REAP: 1})
    for _ in range(OVERWRITES):
        file.write_text("2\n")
        settings.verify()
    assert settings.unapplied[REAP].cause is UnappliedCause.FOREIGN
    assert f"another program keeps writing the kernel setting {REAP}: 2, not 1" in caplog.text
    settings.apply({})
    assert file.read_text() == "2\n"


def test_a_refused_write_names_the_drop_in(anolis: Anolis) -> None:
    class ReadOnly(Features):
        def _write(self, name: str, value: str) -> None:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    settings = ReadOnly(anolis.state, "boot", anolis.folder / "sys", sysfs=anolis.sysfs)
    settings.apply({REAP: 1})
    assert settings.unapplied[REAP].cause is UnappliedCause.REFUSED
    assert DROP_IN in settings.unapplied[REAP].reason
    assert (REPOSITORY / "systemd" / DROP_IN).is_file()
    assert settings.problems[0].startswith(f"kernel setting {REAP} cannot be set to 1: ")


def test_restore_gives_other_settings_back(anolis: Anolis) -> None:
    anolis.daemon().apply(ALL)
    lines = restore_kernel_settings(anolis.daemon(), dry_run=False)
    assert {each.target for each in lines} == {"sysctl", "kernel setting"}
    assert (anolis.settings(), anolis.texts()) == (BEFORE, ("0\n", "1\n"))


def test_a_sysctl_of_this_kernel(tmp_path: Path) -> None:
    with changeable_sysctl() as before:
        settings = KernelSettings(tmp_path, read_boot_id())
        assert settings.apply({NAME: before + 1}) == (SettingChange(NAME, str(before), str(before + 1)),)
        assert FILE.read_text() == f"{before + 1}\n"
        assert [each.error for each in KernelSettings(tmp_path, read_boot_id()).apply({})] == [""]
        assert FILE.read_text() == f"{before}\n"
