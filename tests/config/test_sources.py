"""Where settings come from: defaults, the file, environment variables, flags, and which of them wins."""

import argparse
import dataclasses
from pathlib import Path
from typing import Any

import pytest

from runtimeproxy.config.settings import DEFAULT_CONFIG_PATH, Settings
from runtimeproxy.config.sources import FLAGS, config_path
from runtimeproxy.hooks.policy import FailurePolicy, Mode
from runtimeproxy.hooks.settings import ConflictRule, PolicySettings
from tests.config.reading import PREFIX, load, loaded


@pytest.mark.skipif(Path(DEFAULT_CONFIG_PATH).exists(), reason="this machine has a configuration of its own")
def test_the_defaults() -> None:
    assert dataclasses.asdict(loaded()) == {
        "daemon": {"mode": "proxy", "lock": "/run/koord-runtimeproxy/front-end.lock"},
        "nri": {
            "socket": "/var/run/nri/nri.sock",
            "plugin_name": "koord-runtime-proxy",
            "plugin_index": "50",
            "learn_owners": False,
        },
        "proxy": {
            "endpoint": "/var/run/koord-runtimeproxy/runtimeproxy.sock",
            "runtime_endpoint": "/var/run/containerd/containerd.sock",
            "image_endpoint": "",
            "socket_mode": "0660",
            "socket_owner": "",
            "socket_group": "",
            "allowed_uids": (),
            "max_connections_per_process": 64,
            "upstream_wait_s": 10.0,
            "max_message_bytes": 16_777_216,
            "held_budget_bytes": 67_108_864,
            "own_services": True,
            "drain_s": 3.0,
            "upgrade_start_s": 30.0,
            "upgrade_drain_s": 300.0,
            "runtime_call_timeout_s": 10.0,
        },
        "hooks": {
            "enabled": True,
            "third_party": True,
            "policies_dir": "/etc/koord-runtime-proxy/policies.d",
            "on_load_error": "skip",
            "load_timeout_s": 3.0,
            "budget_s": 5.0,
            "worker_threads": 4,
            "on_unparsable": "forward",
            "on_failure": "forward",
            "conflicts": ConflictRule.LATER,
            "skip_label_key": "runtimeproxy.koordinator.sh/skip-hookserver",
            "skip_label_value": "true",
            "server_config_dir": "/etc/runtime/hookserver.d",
            "server_timeout_s": 2.0,
        },
        "policies": {},
        "cgroups": {"enabled": True, "root": "/sys/fs/cgroup"},
        "node": {
            "sysfs_root": "/sys",
            "procfs_root": "/proc",
            "objects_dir": "/etc/koord-runtime-proxy/node.d",
            "kubelet_dir": "/var/lib/kubelet",
            "cdi_dir": "/var/run/cdi",
            "name": "",
            "shared_pools": "nrt",
        },
        "network": {"link": "", "tunnels": ()},
        "slo": {"start_spread_s": 60.0},
        "kubernetes": {
            "enabled": False,
            "kubeconfig": "",
            "config_namespace": "koordinator-system",
            "katalyst_targets": False,
            "events": True,
            "evictions": True,
        },
        "katalyst": {
            "on_error": "fallback",
            "default_level": "",
            "order": ("katalyst", "koordinator"),
            "allow_unbound_dedicated": False,
            "dedicated_selector": (),
            "shared_selector": (),
            "reclaimed_selector": (),
            "system_selector": (),
            "enhancement_aliases": (),
            "enhancement_defaults": (),
        },
        "ledger": {
            "pods_per_s": 50.0,
            "large_change_percent": 10.0,
            "failed_percent": 10.0,
            "lower_memory_limits": False,
            "take_from_koordlet": (),
            "openings": "best-effort",
        },
        "state": {"dir": "/var/lib/koord-runtime-proxy", "resync_interval_s": 300.0},
        "audit": {"file": "", "max_bytes": 67_108_864, "keep": 4},
        "api": {"admin_socket": "admin/api.sock"},
        "metrics": {"listen": "", "page": False},
        "tracing": {"endpoint": "", "ratio": 1.0},
        "qosmanager": {
            "mode": "enforce",
            "interval_s": 1.0,
            "metrics_source": "kernel",
            "malachite_url": "http://localhost:9002",
            "feature_gates": (),
        },
        "plugins": {},
        "owners": {},
        "eviction": {"most_pods": 10, "interval_s": 60.0, "same_pod_s": 300.0},
        "log": {"level": "info", "format": "auto"},
    }


def test_every_group_of_a_file_is_read(tmp_path: Path) -> None:
    settings = loaded(
        """
        [proxy]
        endpoint = "unix:///run/k/r.sock"
        allowed_uids = [1000, 1001]
        drain_s = 1
        own_services = false
        [hooks]
        conflicts = "earlier"
        on_unparsable = "refuse"
        [policies.batch-resource]
        enabled = false
        mode = "dry-run"
        failure_policy = "fail"
        timeout_s = 0.5
        priority = 7
        [policies.batch-resource.options]
        ratio = 1.5
        names = ["a", "b"]
        [cgroups]
        enabled = false
        [state]
        dir = "/tmp/state"
        [log]
        level = "debug"
        """,
        tmp_path,
    )
    assert settings.proxy.endpoint == "/run/k/r.sock"
    assert settings.proxy.allowed_uids == (1000, 1001)
    assert settings.proxy.drain_s == 1.0
    assert not settings.proxy.own_services
    assert settings.hooks.conflicts is ConflictRule.EARLIER
    assert settings.policies["batch-resource"] == PolicySettings(
        enabled=False,
        mode=Mode.DRY_RUN,
        failure_policy=FailurePolicy.FAIL,
        timeout_s=0.5,
        priority=7,
        options={"ratio": 1.5, "names": ["a", "b"]},
    )
    assert not settings.cgroups.enabled
    assert settings.state.dir == "/tmp/state"
    assert settings.log.level == "debug"


def test_settings_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Settings().proxy.drain_s = 1.0  # type: ignore[misc]


def test_flag_over_environment_over_file_over_default(tmp_path: Path) -> None:
    text = """
    [state]
    dir = "/file"
    [hooks]
    server_config_dir = "/file"
    skip_label_key = "file"
    """
    environ = {PREFIX + "STATE_DIR": "/environment", PREFIX + "HOOKS_SERVER_CONFIG_DIR": "/environment"}
    settings = loaded(text, tmp_path, environ=environ, state_dir="/flag")
    assert settings.state.dir == "/flag"
    assert settings.hooks.server_config_dir == "/environment"
    assert settings.hooks.skip_label_key == "file"
    assert settings.hooks.skip_label_value == "true"


@pytest.mark.parametrize("flag", FLAGS, ids=lambda flag: flag.option)
def test_every_flag_sets_its_key(flag: Any) -> None:
    value = flag.choices[-1] if flag.choices else "/x"
    group, _, key = flag.name.partition(".")
    assert getattr(getattr(loaded(**{flag.destination: value}), group), key) == value


@pytest.mark.parametrize(
    ("name", "text", "group", "key", "value"),
    [
        ("PROXY_DRAIN_S", "1.5", "proxy", "drain_s", 1.5),
        ("PROXY_MAX_MESSAGE_BYTES", "1_000_000", "proxy", "max_message_bytes", 1_000_000),
        ("PROXY_OWN_SERVICES", "false", "proxy", "own_services", False),
        ("PROXY_SOCKET_MODE", "0600", "proxy", "socket_mode", "0600"),
        ("PROXY_ALLOWED_UIDS", "1000, 1001", "proxy", "allowed_uids", (1000, 1001)),
        ("PROXY_ALLOWED_UIDS", "[1000]", "proxy", "allowed_uids", (1000,)),
        ("PROXY_ALLOWED_UIDS", "", "proxy", "allowed_uids", ()),
        ("HOOKS_SKIP_LABEL_VALUE", "5", "hooks", "skip_label_value", "5"),
        ("HOOKS_CONFLICTS", "earlier", "hooks", "conflicts", ConflictRule.EARLIER),
        ("LOG_LEVEL", "error", "log", "level", "error"),
    ],
)
def test_environment_variables(name: str, text: str, group: str, key: str, value: object) -> None:
    settings = loaded(environ={PREFIX + name: text})
    assert getattr(getattr(settings, group), key) == value


def test_variables_that_kubernetes_sets_for_a_service_are_no_settings() -> None:
    loaded(environ={PREFIX + "SERVICE_HOST": "10.0.0.1", PREFIX + "PORT_80_TCP": "tcp://10.0.0.1:80"})


def test_the_file_named_by_a_flag_wins_over_the_variables() -> None:
    environ = {PREFIX + "CONFIG": "/from/environment"}
    assert config_path(argparse.Namespace(), {}) == (DEFAULT_CONFIG_PATH, False)
    assert config_path(argparse.Namespace(), environ) == ("/from/environment", True)
    assert config_path(argparse.Namespace(config="/from/flag"), environ) == ("/from/flag", True)


def test_loading_again_reads_the_file_again(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    arguments = argparse.Namespace(config=str(file))
    file.write_text("[log]\nlevel = 'debug'")
    assert load(arguments, {}).log.level == "debug"
    file.write_text("[log]\nlevel = 'error'")
    assert load(arguments, {}).log.level == "error"


def test_flags_that_are_no_utf_8_do_not_put_the_file_aside(tmp_path: Path) -> None:
    settings = loaded("[proxy]\ndrain_s = 1.5", tmp_path, state_dir="/a\udcff")
    assert (settings.state.dir, settings.proxy.drain_s) == ("/a\udcff", 1.5)
