"""Which settings count at once."""

from dataclasses import replace

import pytest

from runtimeproxy.config.settings import Settings, reloaded
from runtimeproxy.hooks.policy import Mode
from runtimeproxy.hooks.settings import PolicySettings

DEFAULTS = Settings()


def changed(group: str, **values: object) -> Settings:
    return replace(DEFAULTS, **{group: replace(getattr(DEFAULTS, group), **values)})


@pytest.mark.parametrize(
    ("group", "values"),
    [
        ("hooks", {"enabled": False}),
        ("hooks", {"budget_s": 1.0}),
        ("hooks", {"on_unparsable": "refuse"}),
        ("hooks", {"skip_label_key": "other"}),
        ("log", {"level": "debug"}),
    ],
    ids=str,
)
def test_what_counts_at_once(group: str, values: dict[str, object]) -> None:
    new = changed(group, **values)
    assert reloaded(DEFAULTS, new) == (new, [])


def test_policies_count_at_once() -> None:
    new = replace(DEFAULTS, policies={"cpuset": PolicySettings(mode=Mode.DRY_RUN)})
    assert reloaded(DEFAULTS, new) == (new, [])


@pytest.mark.parametrize(
    ("group", "values", "keys"),
    [
        ("proxy", {"endpoint": "/other", "drain_s": 1.0}, ["proxy.endpoint", "proxy.drain_s"]),
        ("cgroups", {"enabled": False}, ["cgroups.enabled"]),
        ("state", {"resync_interval_s": 1.0}, ["state.resync_interval_s"]),
        ("hooks", {"worker_threads": 8, "server_config_dir": "/x"}, None),
        ("log", {"format": "text"}, ["log.format"]),
    ],
    ids=str,
)
def test_what_waits_for_a_restart(group: str, values: dict[str, object], keys: list[str] | None) -> None:
    settings, waiting = reloaded(DEFAULTS, changed(group, **values))
    assert settings == DEFAULTS
    assert waiting == (keys or [f"{group}.{key}" for key in values])


def test_both_in_one_group() -> None:
    settings, waiting = reloaded(DEFAULTS, changed("hooks", budget_s=1.0, worker_threads=8))
    assert settings == changed("hooks", budget_s=1.0)
    assert waiting == ["hooks.worker_threads"]
