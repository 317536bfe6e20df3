import argparse
import dataclasses
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from runtimeproxy.config import (
    DEFAULT_CONFIG_PATH,
    FLAGS,
    CombinedConfigError,
    ProxySettings,
    Settings,
    config_path,
    load,
    owner_ids,
    parse_endpoint,
    socket_mode_bits,
)
from runtimeproxy.config.endpoints import MAX_SOCKET_PATH_BYTES, TEMPORARY_SUFFIX_BYTES
from runtimeproxy.hooks.policy import FailurePolicy, Mode
from runtimeproxy.hooks.settings import ConflictRule, PolicySettings
from runtimeproxy.relay.listener import SocketPathError, listen

PREFIX = "KOORD_RUNTIMEPROXY_"


def loaded(text: str = "", tmp_path: Path | None = None, /, **more: Any) -> Settings:
    """Settings of a file with this text; `environ` and flags by destination in `more`."""
    environ = more.pop("environ", {})
    arguments = argparse.Namespace(**more)
    if tmp_path is not None:
        file = tmp_path / "config.toml"
        file.write_text(text)
        arguments.config = str(file)
    return load(arguments, environ)


def problems(text: str, tmp_path: Path, **more: Any) -> list[tuple[str, str]]:
    with pytest.raises(CombinedConfigError) as raised:
        loaded(text, tmp_path, **more)
    return [(error.key, error.reason) for error in raised.value.errors]


@pytest.mark.skipif(Path(DEFAULT_CONFIG_PATH).exists(), reason="this machine has a configuration of its own")
def test_the_defaults() -> None:
    assert dataclasses.asdict(loaded()) == {
        "proxy": {
            "endpoint": "/var/run/koord-runtimeproxy/runtimeproxy.sock",
            "runtime_endpoint": "/var/run/containerd/containerd.sock",
            "image_endpoint": "",
            "socket_mode": "0660",
            "socket_owner": "",
            "socket_group": "",
            "allowed_uids": (),
            "upstream_wait_s": 10.0,
            "max_message_bytes": 16_777_216,
            "held_budget_bytes": 67_108_864,
            "own_services": True,
            "drain_s": 3.0,
            "runtime_call_timeout_s": 10.0,
        },
        "hooks": {
            "enabled": True,
            "third_party": True,
            "budget_s": 5.0,
            "worker_threads": 4,
            "on_unparsable": "forward",
            "conflicts": ConflictRule.LATER,
            "skip_label_key": "runtimeproxy.koordinator.sh/skip-hookserver",
            "skip_label_value": "true",
            "server_config_dir": "/etc/runtime/hookserver.d",
        },
        "policies": {},
        "cgroups": {"enabled": True, "root": "/sys/fs/cgroup"},
        "state": {"dir": "/var/lib/koord-runtime-proxy", "resync_interval_s": 300.0},
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
    settings = loaded(**{flag.destination: value})
    assert getattr(getattr(settings, flag.group), flag.key) == value


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


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("PROXY_DRAIN_S", "soon", "must be a valid number"),
        ("PROXY_DRAIN_S", "'1'", "must be a valid number"),
        ("PROXY_OWN_SERVICES", "yes", "must be a valid boolean"),
        ("PROXY_DRIAN_S", "1", "no setting has this name"),
        ("ENDPOINT", "/x", "no setting has this name"),
        ("LOG_LEVEL", "loud", "must be 'debug', 'info', 'warning' or 'error'"),
    ],
)
def test_wrong_environment_variables_are_named(name: str, text: str, reason: str) -> None:
    with pytest.raises(CombinedConfigError) as raised:
        loaded(environ={PREFIX + name: text})
    (error,) = raised.value.errors
    assert (error.source, error.key, error.reason) == ("environment", PREFIX + name, reason)


def test_variables_that_kubernetes_sets_for_a_service_are_no_settings() -> None:
    loaded(environ={PREFIX + "SERVICE_HOST": "10.0.0.1", PREFIX + "PORT_80_TCP": "tcp://10.0.0.1:80"})


@pytest.mark.parametrize(
    ("text", "key", "reason"),
    [
        ("[proxy]\ndrian_s = 1", "proxy.drian_s", "unknown key; did you mean drain_s?"),
        ("[proxi]", "proxi", "unknown key; did you mean proxy?"),
        ("[log]\nzzz = 1", "log.zzz", "unknown key; there are: level, format"),
        ("[policies.a]\nmoode = 1", "policies.a.moode", "unknown key; did you mean mode?"),
        ("proxy = 1", "proxy", "must be a table"),
        ("policies = 1", "policies", "must be a table"),
        ("[policies]\na = 1", "policies.a", "must be a table"),
        ("[proxy]\ndrain_s = '1'", "proxy.drain_s", "must be a valid number"),
        ("[proxy]\ndrain_s = true", "proxy.drain_s", "must be a valid number"),
        ("[proxy]\ndrain_s = nan", "proxy.drain_s", "must be less than or equal to 600"),
        ("[proxy]\ndrain_s = inf", "proxy.drain_s", "must be less than or equal to 600"),
        ("[proxy]\ndrain_s = -1", "proxy.drain_s", "must be greater than or equal to 0"),
        ("[proxy]\nmax_message_bytes = 1e6", "proxy.max_message_bytes", "must be a valid integer"),
        ("[proxy]\nown_services = 1", "proxy.own_services", "must be a valid boolean"),
        ("[proxy]\nendpoint = 5", "proxy.endpoint", "must be a valid string"),
        ("[proxy]\nallowed_uids = [-1]", "proxy.allowed_uids.0", "must be greater than or equal to 0"),
        ("[proxy]\nallowed_uids = 0", "proxy.allowed_uids", "must be a valid array"),
        ("[proxy]\nsocket_mode = '0999'", "proxy.socket_mode", "'0999' is no octal mode such as 0660"),
        ("[proxy]\nsocket_owner = 'no-one-'", "proxy.socket_owner", "there is no user 'no-one-'"),
        ("[proxy]\nsocket_group = 'no-one-'", "proxy.socket_group", "there is no group 'no-one-'"),
        ("[hooks]\nworker_threads = 0", "hooks.worker_threads", "must be greater than or equal to 1"),
        ("[hooks]\nconflicts = 'mine'", "hooks.conflicts", "must be 'later' or 'earlier'"),
        ("[policies.a]\nmode = 'dry'", "policies.a.mode", "must be 'enforce' or 'dry-run'"),
        ("[policies.a]\npriority = 100", "policies.a.priority", "must be in 0 to 99"),
        ("[policies.a]\ntimeout_s = 0", "policies.a.timeout_s", "must be more than 0 and at most 600"),
        ("[policies.a]\nenabled = 'no'", "policies.a.enabled", "must be a valid boolean"),
        ("[state]\ndir = 'here'", "state.dir", "'here' is no absolute path"),
        ("[cgroups]\nroot = ''", "cgroups.root", "'' is no absolute path"),
        ("[log]\nlevel = 'loud'", "log.level", "must be 'debug', 'info', 'warning' or 'error'"),
    ],
)
def test_each_wrong_key_is_named_with_its_reason(tmp_path: Path, text: str, key: str, reason: str) -> None:
    assert problems(text, tmp_path) == [(key, reason)]


def test_a_budget_below_one_message_is_refused(tmp_path: Path) -> None:
    ((key, reason),) = problems("[proxy]\nheld_budget_bytes = 1000000", tmp_path)
    assert key == "proxy.held_budget_bytes"
    assert "max_message_bytes is 16777216" in reason


def test_all_errors_of_all_sources_are_listed_together(tmp_path: Path) -> None:
    with pytest.raises(CombinedConfigError) as raised:
        loaded(
            "[proxy]\ndrian_s = 1\nendpoint = 'x/'\n[state]\ndir = 'here'",
            tmp_path,
            environ={PREFIX + "LOG_LEVEL": "loud"},
            proxy_runtime_endpoint="tcp://x",
        )
    path = tmp_path / "config.toml"
    lines = str(raised.value).splitlines()
    assert [line.split(": ")[:2] for line in lines] == [
        [str(path), "proxy.drian_s"],
        ["environment", PREFIX + "LOG_LEVEL"],
        [str(path), "proxy.endpoint"],
        ["flag", "--remote-runtime-service-endpoint"],
        [str(path), "state.dir"],
    ]


def test_a_named_file_must_exist(tmp_path: Path) -> None:
    with pytest.raises(CombinedConfigError, match="there is no such file"):
        loaded(config=str(tmp_path / "absent.toml"))
    with pytest.raises(CombinedConfigError, match="there is no such file"):
        loaded(environ={PREFIX + "CONFIG": str(tmp_path / "absent.toml")})


@pytest.mark.parametrize(
    ("content", "reason"),
    [(b"[proxy\n", "is no TOML"), (b"\xff\xfe", "is no UTF-8"), (b"a = 1\na = 2", "is no TOML")],
)
def test_a_file_that_is_no_toml_is_named(tmp_path: Path, content: bytes, reason: str) -> None:
    file = tmp_path / "config.toml"
    file.write_bytes(content)
    with pytest.raises(CombinedConfigError, match=reason) as raised:
        loaded(config=str(file))
    assert raised.value.source == str(file)


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(CombinedConfigError, match="cannot be read"):
        loaded(config=str(tmp_path))


def test_the_file_named_by_a_flag_wins_over_the_variables() -> None:
    environ = {PREFIX + "CONFIG": "/from/environment"}
    assert config_path(argparse.Namespace(), {}) == (DEFAULT_CONFIG_PATH, False)
    assert config_path(argparse.Namespace(), environ) == ("/from/environment", True)
    assert config_path(argparse.Namespace(config="/from/flag"), environ) == ("/from/flag", True)


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("/run/x.sock", "/run/x.sock"),
        ("unix:/run/x.sock", "/run/x.sock"),
        ("unix:///run/x.sock", "/run/x.sock"),
        ("unix:////run/x.sock", "/run/x.sock"),
        ("/run/a:b.sock", "/run/a:b.sock"),
    ],
)
def test_three_spellings_of_an_endpoint(text: str, path: str) -> None:
    assert parse_endpoint(text) == path


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no absolute path"),
        ("run/x.sock", "no absolute path"),
        ("unix://run/x.sock", "no absolute path"),
        ("unix:", "no absolute path"),
        ("@abstract", "no absolute path"),
        ("tcp://127.0.0.1:80", "is no Unix socket"),
        ("npipe:////./pipe/x", "is no Unix socket"),
        ("/run/", "does not name a file"),
        ("/run/\0", "does not name a file"),
    ],
)
def test_what_is_no_endpoint(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_endpoint(text)


def test_the_longest_own_socket_is_one_that_can_be_bound(tmp_path: Path) -> None:
    longest = "/tmp/" + "x" * (MAX_SOCKET_PATH_BYTES - TEMPORARY_SUFFIX_BYTES - len("/tmp/"))
    assert parse_endpoint(longest, spare_bytes=TEMPORARY_SUFFIX_BYTES) == longest
    with pytest.raises(ValueError, match="has 104 bytes, at most 103 are possible"):
        parse_endpoint(longest + "x", spare_bytes=TEMPORARY_SUFFIX_BYTES)
    with pytest.raises(SocketPathError):
        listen(longest + "x")


def test_a_long_runtime_socket_uses_all_bytes() -> None:
    longest = "/" + "ü" * 53
    assert parse_endpoint(longest) == longest
    with pytest.raises(ValueError, match="at most 107"):
        parse_endpoint(longest + "x")


def test_a_runtime_that_is_the_own_socket_is_refused(tmp_path: Path) -> None:
    folder, link = tmp_path / "run", tmp_path / "link"
    folder.mkdir()
    link.symlink_to(folder)
    reasons = []
    for key in ("proxy_runtime_endpoint", "proxy_image_endpoint"):
        with pytest.raises(CombinedConfigError) as raised:
            loaded(proxy_endpoint=f"{folder}/x.sock", **{key: f"unix://{link}/x.sock"})
        reasons.append(str(raised.value))
    assert all("is the proxy's own socket" in reason for reason in reasons)
    assert reasons[0].startswith("flag: --remote-runtime-service-endpoint: ")
    assert reasons[1].startswith("flag: --remote-image-service-endpoint: ")


def test_a_hard_link_to_the_own_socket_is_seen(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as own:
        own.bind(str(tmp_path / "own.sock"))
        os.link(tmp_path / "own.sock", tmp_path / "other.sock")
        with pytest.raises(CombinedConfigError, match="own socket"):
            loaded(
                proxy_endpoint=str(tmp_path / "own.sock"), proxy_runtime_endpoint=str(tmp_path / "other.sock")
            )


@pytest.mark.parametrize(("text", "bits"), [("0660", 0o660), ("600", 0o600), ("0777", 0o777)])
def test_socket_modes(text: str, bits: int) -> None:
    assert socket_mode_bits(text) == bits


@pytest.mark.parametrize("text", ["", "66", "0o660", "06600", "rw-rw----", "0668"])
def test_what_is_no_socket_mode(text: str) -> None:
    with pytest.raises(ValueError, match="no octal mode"):
        socket_mode_bits(text)


def test_owners_by_name_and_number() -> None:
    assert owner_ids(ProxySettings()) == (-1, -1)
    assert owner_ids(ProxySettings(socket_owner="root", socket_group="root")) == (0, 0)
    assert owner_ids(ProxySettings(socket_owner="12", socket_group="34")) == (12, 34)


def test_loading_again_reads_the_file_again(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    arguments = argparse.Namespace(config=str(file))
    file.write_text("[log]\nlevel = 'debug'")
    assert load(arguments, {}).log.level == "debug"
    file.write_text("[log]\nlevel = 'error'")
    assert load(arguments, {}).log.level == "error"


def test_flags_alone_do_not_cost_the_import_of_pydantic() -> None:
    program = """
import argparse, sys
from runtimeproxy.config import load
load(argparse.Namespace(proxy_endpoint="/x"), {})
print([name for name in ("pydantic", "tomllib", "json", "grpc") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_every_setting_says_what_it_is() -> None:
    import ast

    import runtimeproxy.config.settings as module

    assert module.__file__
    for node in ast.parse(Path(module.__file__).read_text()).body:
        if isinstance(node, ast.ClassDef) and node.name.endswith("Settings") and node.name != "Settings":
            for field, text in zip(node.body[1::2], node.body[2::2], strict=True):
                assert isinstance(field, ast.AnnAssign)
                assert isinstance(text, ast.Expr)
                assert "efault" in ast.unparse(text)


def test_a_type_that_settings_do_not_use_has_no_schema() -> None:
    from runtimeproxy.config.schema import schema_of

    for hint in (set[int], bytes, int | str, tuple[int, int]):
        with pytest.raises(TypeError, match="settings have no type"):
            schema_of(hint)


def test_a_file_does_not_cost_the_import_of_all_of_pydantic(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text("[log]\nlevel = 'debug'")
    program = f"""
import argparse, sys
from runtimeproxy.config import load
load(argparse.Namespace(config={str(file)!r}), {{}})
print("pydantic" in sys.modules, "pydantic_core" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False True\n"
