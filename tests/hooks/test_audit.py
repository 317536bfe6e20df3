"""Values in audit entries."""

from __future__ import annotations

import pytest

from runtimeproxy.hooks import CLEAR, DeviceSpec, MountSpec
from runtimeproxy.hooks.audit import shown
from runtimeproxy.hooks.fields import Field, Value


@pytest.mark.parametrize(
    ("group", "value", "text"),
    [
        ("resources", 512, "512"),
        ("resources", None, ""),
        ("annotations", CLEAR, ""),
        ("annotations", "x" * 300, "x" * 256 + "..."),
        ("env", "hunter2", "<set>"),
        ("env", b"hunter2", "<set>"),
        ("env", CLEAR, ""),
        ("mounts", MountSpec(host_path="/h", container_path="/c"), "/h:/c:ro"),
        ("mounts", MountSpec(host_path="/h", container_path="/c", readonly=False), "/h:/c:rw"),
        ("devices", DeviceSpec(host_path="/dev/a", container_path="/dev/b"), "/dev/a:/dev/b:rwm"),
    ],
)
def test_values_are_shown_without_secrets(group: str, value: Value, text: str) -> None:
    assert shown(Field(group, "key"), value) == text
