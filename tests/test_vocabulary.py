"""The texts by which claims and modes stand in the configuration, in files and in the audit."""

from __future__ import annotations

from runtimeproxy import hooks
from runtimeproxy.qosmanager import plugin, snapshot
from runtimeproxy.vocabulary import ClaimLevel, Mode, Role


def test_the_texts_that_files_have() -> None:
    assert [str(role) for role in Role] == ["set", "scale", "add", "at_most"]
    assert [str(mode) for mode in Mode] == ["enforce", "dry-run", "off"]
    assert {str(level) for level in ClaimLevel} == {
        "container",
        "pod",
        "qos-class",
        "host-application",
        "node",
        "pool",
    }


def test_authors_of_policies_and_of_plugins_import_the_same() -> None:
    assert hooks.Mode is plugin.Mode is Mode
    assert plugin.Role is Role
    assert snapshot.Level is ClaimLevel
