"""Values that people write and read: durations, times, label selectors. All functions are pure.

Those that read an argument raise `argparse.ArgumentTypeError`.
"""

from __future__ import annotations

import argparse
import re
from contextlib import suppress
from datetime import UTC, datetime, time, timedelta
from typing import TYPE_CHECKING, Any, Final

from runtimeproxy.labels import LabelOperator, LabelRequirement, LabelSelector, label_problems
from runtimeproxy.units import quantity_bytes

if TYPE_CHECKING:
    from google.protobuf.internal.enum_type_wrapper import _EnumTypeWrapper
    from google.protobuf.timestamp_pb2 import Timestamp

_UNITS: Final = {"d": 86_400.0, "h": 3_600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
"""In seconds, in the order in which they are written. Source: Go's time.ParseDuration, and days."""
MOST_S: Final = 366 * 86_400.0
"""Of a duration; no command has one of more than a year."""
_PART: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|[dhms])")
_DAYS: Final = re.compile(r"(\d{1,3})\s*days?\s+ago")
_CLOCK: Final = re.compile(r"\d\d:\d\d(:\d\d)?")
_SET: Final = re.compile(r"(\S+)\s+(in|notin)\s*\(([^()]*)\)")
_PAIR: Final = re.compile(r"([^=!\s]+)\s*(==|=|!=)\s*([^=!\s]*)")


def duration_s(text: str) -> float:
    """Seconds of a duration such as `10m`, `1h30m` or `500ms`; more than 0, at most `MOST_S`."""
    parts = _PART.findall(text)
    seconds = sum(float(number) * _UNITS[unit] for number, unit in parts)
    if "".join(number + unit for number, unit in parts) != text or not seconds:
        raise argparse.ArgumentTypeError(f"{text!r} is not a duration such as 30s, 10m or 1h30m")
    if seconds > MOST_S:
        raise argparse.ArgumentTypeError(f"{text!r} is more than {shown_duration(MOST_S)}")
    return seconds


def past_moment(text: str, now: datetime | None = None) -> datetime:
    """A moment such as `2h` (ago), `yesterday`, `14:30`, `2026-11-20` or RFC 3339; local without an offset.

    `now`: None for the present.
    """
    now = utc_now() if now is None else now
    today = now.astimezone().replace(hour=0, minute=0, second=0, microsecond=0)
    plain = text.strip().lower()
    if plain in ("now", "today", "yesterday"):
        return {"now": now, "today": today, "yesterday": today - timedelta(days=1)}[plain]
    if found := _DAYS.fullmatch(plain):
        return today - timedelta(days=int(found[1]))
    with suppress(argparse.ArgumentTypeError):
        return now - timedelta(seconds=duration_s(plain.removesuffix("ago").strip()))
    try:
        if _CLOCK.fullmatch(plain):
            found_time = datetime.combine(today, time.fromisoformat(plain)).astimezone()
            # One that is still to come today is yesterday's.
            return found_time if found_time <= now else found_time - timedelta(days=1)
        return datetime.fromisoformat(text.strip().upper()).astimezone()
    except (ValueError, OverflowError, OSError) as error:
        reason = f"{text!r} is not a time such as 2h, yesterday, 14:30, 2026-11-20 or 2026-11-20T14:30:00Z"
        raise argparse.ArgumentTypeError(reason) from error


def natural(text: str) -> int:
    """A number from 0 on that a message can hold."""
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 to 999999999")
    return int(text)


def plain_text(text: str) -> str:
    """A text that a message can hold."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not valid UTF-8") from error
    return text


def size_bytes(text: str) -> int:
    """Bytes of a size such as `256Mi` or `1G`, as Kubernetes writes it; more than 0."""
    try:
        size = quantity_bytes(text)
    except ValueError:
        size = 0
    if size <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 256Mi or 1Gi")
    return size


def shown_duration(seconds: float) -> str:
    """A duration for people, in its two largest units: `2 h 5 min`."""
    rest = round(seconds)
    names = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))
    parts: list[str] = []
    for name, size in names:
        number, rest = divmod(rest, size)
        if number:
            parts.append(f"{number} {name}")
        elif parts:
            break  # no "2 d 5 s"
    return " ".join(parts[:2]) or "0 s"


def shown_time(moment: datetime, now: datetime) -> str:
    """A moment for people: `12:03:04 (5 min ago)`, with the date if it is not today's."""
    local, today = moment.astimezone(), now.astimezone()
    text = local.strftime("%H:%M:%S" if local.date() == today.date() else "%Y-%m-%d %H:%M:%S")
    away = now - moment
    if abs(away) < timedelta(seconds=1):
        return f"{text} (now)"
    distance = shown_duration(abs(away).total_seconds())
    return f"{text} ({distance} ago)" if away > timedelta(0) else f"{text} (in {distance})"


def utc_now() -> datetime:
    return datetime.now(UTC)


def moment(timestamp: Timestamp) -> datetime:
    return timestamp.ToDatetime(UTC)


def enum_name(enum: _EnumTypeWrapper[Any], number: int) -> str:
    """The name of a value of a message, in lower case: `dry-run` for `MODE_DRY_RUN`.

    A value that a newer daemon has and this command does not know is a number.
    """
    value = enum.DESCRIPTOR.values_by_number.get(number)
    if value is None:
        return str(number)
    prefix = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", enum.DESCRIPTOR.name).upper() + "_"
    return value.name.removeprefix(prefix).lower().replace("_", "-")


def label_selector(text: str) -> LabelSelector:
    """A label selector as kubectl takes it: `app=web,tier!=front,env in (a, b),!legacy`."""
    labels: dict[str, str] = {}
    expressions: list[LabelRequirement] = []
    for part in re.split(r",(?![^()]*\))", text):
        requirement = _requirement(part.strip(), text)
        if requirement.operator is LabelOperator.IN and "(" not in part and requirement.key not in labels:
            labels[requirement.key] = requirement.values[0]
        else:
            expressions.append(requirement)
    selector = LabelSelector(match_labels=labels, match_expressions=tuple(expressions))
    for _, reason in label_problems(selector):
        raise argparse.ArgumentTypeError(reason)
    return selector


def _requirement(part: str, text: str) -> LabelRequirement:
    if found := _SET.fullmatch(part):
        operator = LabelOperator.IN if found[2] == "in" else LabelOperator.NOT_IN
        values = tuple(value.strip() for value in found[3].split(","))
        return LabelRequirement(key=found[1], operator=operator, values=values)
    if found := _PAIR.fullmatch(part):
        operator = LabelOperator.NOT_IN if found[2] == "!=" else LabelOperator.IN
        return LabelRequirement(key=found[1], operator=operator, values=(found[3],))
    key = part.removeprefix("!").strip()
    if not key or re.search(r"[\s=!()]", key):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a label selector such as app=web,tier!=front,env in (a,b),!legacy"
        )
    operator = LabelOperator.DOES_NOT_EXIST if part.startswith("!") else LabelOperator.EXISTS
    return LabelRequirement(key=key, operator=operator)
