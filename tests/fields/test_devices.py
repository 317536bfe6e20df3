"""Values by block device: their form, their lines in files of both versions, and what is the same."""

from __future__ import annotations

import pytest

from runtimeproxy.fields import devices
from runtimeproxy.fields.tables import BY_DEVICE, FIELDS, check_value, saved_value

WRITE, IOPS, WEIGHT = (
    "blkio.throttle.write_bps_device",
    "blkio.throttle.write_iops_device",
    "blkio.cost.weight",
)
QOS, MODEL = "blkio.cost.qos", "blkio.cost.model"
SHOWN_QOS = "enable=1 ctrl=user rpct=95.00 rlat=3000 wpct=95.00 wlat=3000 min=50.00 max=150.00"


def test_devices_stand_in_the_order_of_their_numbers() -> None:
    field = FIELDS[WRITE]
    assert field.canonical("253:16 1024,8:16 7,8:0 0") == "8:0 0,8:16 7,253:16 1024"
    assert field.canonical("") == ""
    assert field.is_same("8:0 1,7:0 2", "7:0 2,8:0 1")
    assert not field.is_same("8:0 1", "8:0 1,7:0 2")


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        (WRITE, 5, "is not a list of block devices"),
        (WRITE, "8:0", "is not a list of block devices"),
        (WRITE, "8:0 1,8:0 2", "is not a list of block devices"),
        (WRITE, "8:0 1\n8:16 2", "is not a list of block devices"),
        (WRITE, "08:0 1", "is not a list of block devices"),
        (WRITE, "8:0 -1", "is not a list of block devices"),
        (WRITE, "8:0 max", "is not a list of block devices"),
        (WRITE, "8:0 enable=1", "of 8:0 is not in 1 to"),
        (WRITE, f"8:0 {2**64 - 1}", "of 8:0 is not in 1 to"),
        (IOPS, f"8:0 {2**32 - 1}", "of 8:0 is not in 1 to 4294967294, or 0"),
        (WEIGHT, "8:0 10001", "of 8:0 is not in 1 to 10000, or 0"),
        (QOS, "8:0 5", "of 8:0 is not one of its settings"),
        (QOS, "8:0 enable=1 rbps=5", "of 8:0 is not one of its settings"),
        (MODEL, "8:0 ctrl=off", "of 8:0 is not one of its settings"),
        (WRITE, ",".join(f"8:{each} 1" for each in range(129)), "has more than 128 block devices"),
    ],
)
def test_what_is_no_such_value_is_told(name: str, value: str, problem: str) -> None:
    assert check_value(name, value).startswith(f"{name} {problem}")


def test_a_saved_value_is_one_that_can_be_compared() -> None:
    assert saved_value(WRITE, "8:0 99999999999999999999") == "8:0 99999999999999999999"
    with pytest.raises(ValueError, match="list of block devices"):
        saved_value(WRITE, "8:0")
    with pytest.raises(ValueError, match="no value of its kind"):
        saved_value(WRITE, 5)


@pytest.mark.parametrize(
    ("name", "version", "content", "value"),
    [
        (WRITE, 1, "254:0 77\n7:0 5\n", "7:0 5,254:0 77"),
        (WRITE, 1, "", ""),
        (WRITE, 2, "8:16 rbps=2097152 wbps=max riops=max wiops=120\n8:0 rbps=max wbps=9\n", "8:0 9"),
        (IOPS, 2, "8:16 rbps=2097152 wbps=max riops=max wiops=120\n", "8:16 120"),
        (WEIGHT, 2, "default 100\n8:16 200\n", "8:16 200"),
        (WEIGHT, 1, "default 100\n", ""),
        (QOS, 2, f"8:16 {SHOWN_QOS}\n", f"8:16 {SHOWN_QOS}"),
    ],
)
def test_files_are_read(name: str, version: int, content: str, value: str) -> None:
    file = FIELDS[name].format_for(version)
    assert file is not None
    assert file.decode(content) == value
    assert file.matches(value, content)
    assert file.lines is not None
    assert file.lines(value, content) == ()


@pytest.mark.parametrize(
    ("version", "content"),
    [(1, "8:0 much\n"), (1, "8:0 -5\n"), (2, "8:0 rbps=1 wbps=lots riops=max wiops=max\n")],
)
def test_other_content_is_none(version: int, content: str) -> None:
    file = FIELDS[WRITE].format_for(version)
    assert file is not None
    with pytest.raises(ValueError, match="block devices"):
        file.decode(content)


@pytest.mark.parametrize(
    ("name", "version", "value", "content", "lines"),
    [
        (WRITE, 1, "7:0 6,8:0 5,8:16 0", "8:16 3\n7:0 6\n", ("8:0 5", "8:16 0")),
        (WRITE, 1, "8:16 0", "", ()),
        (
            WRITE,
            2,
            "8:0 5,8:16 0",
            "8:16 rbps=1 wbps=3 riops=max wiops=max\n",
            ("8:0 wbps=5", "8:16 wbps=max"),
        ),
        (WRITE, 2, "8:16 0", "8:16 rbps=1 wbps=max riops=max wiops=max\n", ()),
        (WEIGHT, 2, "8:0 40,8:16 0", "default 100\n8:16 7\n", ("8:0 40", "8:16 default")),
        (QOS, 2, "8:16 enable=1 ctrl=user rpct=95 rlat=3000 wpct=95 wlat=3000", f"8:16 {SHOWN_QOS}\n", ()),
        (QOS, 2, "8:16 enable=0", f"8:16 {SHOWN_QOS}\n", ("8:16 enable=0",)),
        (QOS, 2, "8:16 enable=0", "", ()),
        (QOS, 2, "8:0 enable=1 ctrl=auto rpct=90.00 rlat=5", "", ("8:0 enable=1 ctrl=auto",)),
        (QOS, 2, "8:0 enable=1 rlat=5", "8:0 enable=1 rlat=6\n", ("8:0 enable=1 rlat=5",)),
        (QOS, 2, "8:0 enable=1 rpct=95.5", "8:0 enable=1 rpct=95.50\n", ()),
        (QOS, 2, "8:0 enable=1 rpct=95.5", "8:0 enable=1 rpct=95.05\n", ("8:0 enable=1 rpct=95.5",)),
        (MODEL, 2, "8:0 ctrl=auto", "8:0 ctrl=user model=linear rbps=5\n", ("8:0 ctrl=auto",)),
    ],
)
def test_only_lines_that_change_something_are_written(
    name: str, version: int, value: str, content: str, lines: tuple[str, ...]
) -> None:
    file = FIELDS[name].format_for(version)
    assert file is not None
    assert file.lines is not None
    assert file.lines(value, content) == lines
    assert file.matches(value, content) is (not lines)


def test_no_lease_and_no_message_has_one() -> None:
    """The value of a lease is read back from its file, which may have lines of other programs."""
    assert {*BY_DEVICE} == {each for each in FIELDS if each.startswith("blkio.")}
    for name in BY_DEVICE:
        assert not FIELDS[name].levels
        assert not FIELDS[name].resource


def test_lines_move_from_one_content_to_another() -> None:
    text = devices.joined_lines("default 100\n8:0 1\n8:16 2\n", "8:16 3\n253:0 4\n", ["8:0", "8:16", "253:0"])
    assert text == "default 100\n8:16 3\n253:0 4\n"
