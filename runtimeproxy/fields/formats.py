"""The formats of values in the kernel's cgroup files, version 1 and 2; pure functions.

A value is an integer (-1 stands for "unlimited" where the file knows that) or text: that of CPU and NUMA node
lists is in the kernel's list format.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias

from runtimeproxy.fields import devices
from runtimeproxy.units import (
    MAX_CPU_WEIGHT,
    MIN_CPU_WEIGHT,
    UNLIMITED,
    WeightFormula,
    cpu_shares_from_weight,
    cpu_weight_from_shares,
    format_cpu_list,
    format_cpu_max,
    format_memory_max,
    parse_cpu_list,
    parse_cpu_max,
    parse_memory_max,
)

Value: TypeAlias = int | str

_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class FileFormat:
    """One kernel file that carries a parameter."""

    file: str
    encode: Callable[[Value], str]
    """Value to text."""
    decode: Callable[[str], Value]
    """File content to value; ValueError for other content."""
    matches: Callable[[Value, str], bool]
    """Whether writing the value would leave the file's content as it is."""
    compose: Callable[[Value, str], str] | None = None
    """In place of `encode` where the text also depends on the file's content."""
    limits: tuple[int, int] | None = None
    """The smallest and the largest number in the file, if they are not those of the field."""
    default: str | None = None
    """The content in a new cgroup, if it is not the text of the field's neutral value."""
    lines: Callable[[Value, str], tuple[str, ...]] | None = None
    """In place of `encode` where the kernel takes one line in one write: those that change the content."""
    bounded_by: str = ""
    """A file of the same cgroup with the same kind of number, below which the kernel keeps this one's."""


class Members(Enum):
    """What has a value of its own in a cgroup."""

    PROCESSES = "processes"
    THREADS = "threads"
    CGROUP = "cgroup"
    """None of them: the cgroup itself has it, elsewhere in the kernel, and none of its files shows it."""


@dataclass(frozen=True, slots=True)
class ProcessFormat(FileFormat):
    """A value that each process or thread of a cgroup has for itself, in place of a file of the cgroup.

    `file`: its file in the process's folder of procfs, or the name of what reads and writes it otherwise
    (`cgroups/processes.py`). Its content is each value that one of them has, once, with blanks between.
    `decode` knows the value that all have, and raises ValueError if they have several; `matches` is whether
    all have it, or there is none.
    """

    members: Members = Members.PROCESSES


def number_of_processes(file: str) -> ProcessFormat:
    return ProcessFormat(
        file, str, _number, lambda value, text: all(_number(each) == value for each in text.split())
    )


def number_of_threads(name: str) -> ProcessFormat:
    """A number that is no file of procfs, and 0 for threads that have none."""

    def decode(text: str) -> Value:
        # Threads that have just come may have none yet.
        found = {_number(each) for each in text.split()}
        found = found - {0} or found
        if len(found) != 1:
            raise ValueError(f"{len(found)} numbers")
        return found.pop()

    return ProcessFormat(
        name,
        str,
        decode,
        lambda value, text: all(_number(each) == value for each in text.split()),
        members=Members.THREADS,
    )


def word_of_threads(name: str) -> ProcessFormat:
    # One word, which is no file of procfs.
    def matches(value: Value, text: str) -> bool:
        return all(each == value for each in text.split())

    return ProcessFormat(name, str, _one_word, matches, members=Members.THREADS)


def word_of_cgroup(name: str) -> ProcessFormat:
    return ProcessFormat(
        name, str, _one_word, lambda value, text: text.strip() == value, members=Members.CGROUP
    )


def number_of_cgroup(name: str) -> ProcessFormat:
    return ProcessFormat(
        name, str, _number, lambda value, text: _number(text) == value, members=Members.CGROUP
    )


def _one_word(text: str) -> Value:
    found = text.split()
    if len(found) != 1:
        raise ValueError(f"{len(found)} words")
    return found[0]


def number(file: str) -> FileFormat:
    return FileFormat(file, str, _number, lambda value, text: _number(text) == value)


def usage_v1(file: str) -> FileFormat:
    """CPU time that a cgroup has used, in microseconds. Source: Linux kernel/sched/cpuacct.c, nanoseconds."""
    return FileFormat(file, str, lambda text: _number(text) // 1_000, lambda value, text: False)


def usage_v2(file: str) -> FileFormat:
    """The same of a file of lines, `usage_usec` one of them. Source: Linux kernel/cgroup/rstat.c."""

    def decode(text: str) -> Value:
        found = dict(line.split(None, 1) for line in text.splitlines() if " " in line)
        if "usage_usec" not in found:
            raise ValueError("has no usage")
        return _number(found["usage_usec"])

    return FileFormat(file, str, decode, lambda value, text: False)


def number_or_max(file: str) -> FileFormat:
    return FileFormat(
        file,
        lambda value: format_memory_max(int(value)),
        parse_memory_max,
        lambda value, text: parse_memory_max(text) == value,
    )


def text(file: str) -> FileFormat:
    # One word, as it stands in the file.
    return FileFormat(file, str, str.strip, lambda value, content: content.strip() == value)


def quota_v2(file: str) -> FileFormat:
    # First field of cpu.max: only the quota is written, so that the kernel keeps the period.
    return FileFormat(
        file,
        lambda value: format_cpu_max(int(value)),
        lambda text: parse_cpu_max(text)[0],
        lambda value, text: parse_cpu_max(text)[0] == value,
    )


def period_v2(file: str) -> FileFormat:
    # Second field of cpu.max, which cannot be written without the first.
    return FileFormat(
        file,
        str,
        lambda text: parse_cpu_max(text)[1],
        lambda value, text: parse_cpu_max(text)[1] == value,
        compose=with_quota,
    )


def weight_v2(file: str, formula: WeightFormula = WeightFormula.LINEAR) -> FileFormat:
    """cpu.weight from shares: compared as weights, because several shares map to one weight.

    A weight that another formula gives matches, too: an upgrade of the runtime changes it for new containers.
    """

    def matches(value: Value, text: str) -> bool:
        weight = _number(text)
        return any(cpu_weight_from_shares(int(value), each) == weight for each in WeightFormula)

    return FileFormat(
        file,
        lambda value: str(cpu_weight_from_shares(int(value), formula)),
        lambda text: cpu_shares_from_weight(_number(text), formula),
        matches,
        limits=(MIN_CPU_WEIGHT, MAX_CPU_WEIGHT),
        default="100",
    )


def memory_v1(file: str, unlimited: str = "-1", bounded_by: str = "") -> FileFormat:
    # Bytes, which the kernel rounds down to pages; `unlimited` is how -1 is written.
    return FileFormat(
        file,
        lambda value: unlimited if value == UNLIMITED else str(value),
        parse_memory_max,
        lambda value, text: _same_memory(int(value), text),
        bounded_by=bounded_by,
    )


def memory_v2(file: str) -> FileFormat:
    # Bytes, which the kernel rounds down to pages, or `max`.
    return FileFormat(
        file,
        lambda value: format_memory_max(int(value)),
        parse_memory_max,
        lambda value, text: _same_memory(int(value), text),
    )


def cpu_list(file: str) -> FileFormat:
    return FileFormat(
        file,
        str,
        lambda text: format_cpu_list(parse_cpu_list(text.strip())),
        lambda value, text: parse_cpu_list(str(value)) == parse_cpu_list(text.strip()),
    )


def by_device(file: str, reset: str, key: str = "", reset_text: str = "") -> FileFormat:
    """A line for each block device, `8:0 1048576`; see `fields/devices.py`.

    Args:
        file: Its name.
        reset: The setting of a device that the file has no line for.
        key: Of the number, where a line has several: `8:0 rbps=1048576 wbps=max riops=max wiops=max`.
        reset_text: The text for a number of 0.
    """

    def decode(text: str) -> str:
        found: dict[str, str] = {}
        for device, rest in devices.plain_lines(text).items():
            setting = rest
            if key:
                pairs = dict(each.partition("=")[::2] for each in rest.split())
                setting = pairs.get(key, reset_text)
            if setting != reset_text:
                found[device] = setting
        value = devices.text_of(found)
        devices.by_device(value)
        return value

    def changed(value: Value, text: str) -> dict[str, str]:
        present = devices.by_device(decode(text))
        return {
            device: setting
            for device, setting in devices.by_device(value).items()
            if not devices.is_same_setting(setting, present.get(device, reset))
        }

    def line(device: str, setting: str) -> str:
        written = reset_text if reset_text and setting == reset else devices.written_setting(setting)
        return f"{device} {key}={written}" if key else f"{device} {written}"

    def encode(value: Value) -> str:
        return "\n".join(line(*each) for each in devices.by_device(value).items())

    return FileFormat(
        file,
        encode,
        decode,
        lambda value, text: not changed(value, text),
        lines=lambda value, text: tuple(line(*each) for each in changed(value, text).items()),
    )


def with_quota(period_us: Value, cpu_max: str) -> str:
    return format_cpu_max(parse_cpu_max(cpu_max)[0], int(period_us))


def _number(text: str) -> int:
    return int(text.strip())


def _same_memory(limit_bytes: int, text: str) -> bool:
    # Through text and back: a limit too large for the kernel's page counter reads back as unlimited.
    # Plain files, as in tests, are not rounded.
    return _whole_pages(parse_memory_max(text)) == _whole_pages(parse_memory_max(str(limit_bytes)))


def _whole_pages(limit_bytes: int) -> int:
    return limit_bytes - limit_bytes % _PAGE_BYTES if limit_bytes >= 0 else limit_bytes
