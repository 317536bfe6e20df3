import configparser
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from runtimeproxy.config.parsing import socket_mode_bits
from runtimeproxy.config.settings import DEFAULT_CONFIG_PATH, ProxySettings, Settings
from tests.lab.programs import missing

UNITS = Path(__file__).parents[2] / "systemd"
SERVICE, SOCKET = UNITS / "koord-runtime-proxy.service", UNITS / "koord-runtime-proxy.socket"
MANAGER = UNITS / "koord-qos-manager.service"
DROP_IN = UNITS / "kubelet.service.d" / "20-koord-runtime-proxy.conf"
DEFAULTS = ProxySettings()
MOST_EXPOSURE = {SERVICE: 1.7, MANAGER: 1.1}
"""Of 10, by the marks of systemd 252; newer ones look at more."""

KUBELET = """
[Service]
EnvironmentFile=-/etc/default/kubelet
ExecStart=/bin/true $KUBELET_EXTRA_ARGS
"""


def unit(path: Path) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(strict=False, interpolation=None, delimiters=("=",))
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(path)
    return parser


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The units as they would be installed, calling a program that exists here."""
    for path in (SERVICE, SOCKET, MANAGER):
        text = re.sub(r"^(Exec\w+=)/opt/\S+", r"\1/bin/true", path.read_text(), flags=re.MULTILINE)
        (tmp_path / path.name).write_text(text)
    shutil.copytree(DROP_IN.parent, tmp_path / DROP_IN.parent.name)
    shutil.copytree(UNITS / f"{MANAGER.name}.d", tmp_path / f"{MANAGER.name}.d")
    (tmp_path / "kubelet.service").write_text(KUBELET)
    return tmp_path


def analyze(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    if shutil.which("systemd-analyze") is None:
        missing("systemd-analyze is missing: run tests/lab/install.sh")
    environ = os.environ | {"SYSTEMD_UNIT_PATH": f"{folder}:", "SYSTEMD_LOG_LEVEL": "warning"}
    return subprocess.run(
        ["systemd-analyze", *arguments], capture_output=True, text=True, check=False, env=environ
    )


@pytest.mark.debian
def test_systemd_finds_nothing_wrong_with_the_units(folder: Path) -> None:
    names = (SERVICE.name, SOCKET.name, MANAGER.name, "kubelet.service")
    done = analyze(folder, "verify", "--man=no", *(str(folder / name) for name in names))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.debian
def test_systemd_does_find_what_is_wrong(folder: Path) -> None:
    service = folder / SERVICE.name
    service.write_text(service.read_text().replace("[Service]", "[Service]\nWatchdogSeconds=1"))
    assert "WatchdogSeconds" in analyze(folder, "verify", "--man=no", str(service)).stderr


@pytest.mark.debian
@pytest.mark.parametrize("service", [SERVICE, MANAGER], ids=lambda path: path.stem)
def test_the_services_are_no_more_exposed_than_they_were(folder: Path, service: Path) -> None:
    # Each drop-in is for a feature that needs more.
    shutil.rmtree(folder / f"{MANAGER.name}.d")
    done = analyze(folder, "security", "--offline=yes", "--no-pager", str(folder / service.name))
    (exposure,) = re.findall(r"Overall exposure level for \S+: ([0-9.]+)", done.stdout)
    assert float(exposure) <= MOST_EXPOSURE[service]


def test_a_system_call_that_is_not_allowed_fails() -> None:
    assert unit(SERVICE)["Service"]["SystemCallErrorNumber"] == "EPERM"


def test_it_is_started_again_whatever_has_ended_it() -> None:
    # Where systemd does not start it again, clients that wait in the socket do: at once, and soon more often
    # than the socket's own limit (TriggerLimitBurst=) allows, which ends the socket.
    service = unit(SERVICE)
    assert service["Unit"]["StartLimitIntervalSec"] == "0"
    assert service["Service"]["Restart"] == "always"
    assert "RestartPreventExitStatus" not in service["Service"]


def test_the_manager_has_fewer_rights_than_the_daemon() -> None:
    manager, daemon = unit(MANAGER)["Service"], unit(SERVICE)["Service"]
    assert manager["CapabilityBoundingSet"] == ""
    assert (manager["ProtectControlGroups"], daemon["ProtectControlGroups"]) == ("yes", "no")
    # Values that it may not lose.
    same = (
        "Type",
        "Restart",
        "SystemCallFilter",
        "SystemCallErrorNumber",
        "RestrictAddressFamilies",
        "UMask",
    )
    assert {key: manager[key] for key in same} == {key: daemon[key] for key in same}
    # An invalid configuration ends it with 2, which nothing changes.
    assert manager["RestartPreventExitStatus"] == "2"
    assert unit(MANAGER)["Unit"]["After"] == SERVICE.name
    # The daemon's restart is no reason for its own.
    assert not {"Requires", "BindsTo", "PartOf"} & set(unit(MANAGER)["Unit"])


def test_the_socket_is_the_daemons_default() -> None:
    section = unit(SOCKET)["Socket"]
    assert section["ListenStream"] == DEFAULTS.endpoint.removeprefix("/var")
    assert socket_mode_bits(section["SocketMode"]) == socket_mode_bits(DEFAULTS.socket_mode)


def test_the_kubelet_is_pointed_to_the_socket() -> None:
    text = unit(DROP_IN)["Service"]["Environment"]
    endpoint = unit(SOCKET)["Socket"]["ListenStream"]
    assert text == f"KUBELET_EXTRA_ARGS=--container-runtime-endpoint=unix://{endpoint}"


def test_the_service_starts_between_runtime_and_kubelet_and_lives_on() -> None:
    section, service = unit(SERVICE)["Unit"], unit(SERVICE)["Service"]
    assert {"containerd.service", "crio.service"} <= set(section["After"].split())
    assert "kubelet.service" in section["Before"].split()
    assert section["StartLimitIntervalSec"] == "0"
    assert (service["Type"], service["Restart"]) == ("notify", "always")
    assert re.findall(r"^ExecReload=(.*)$", SERVICE.read_text(), re.MULTILINE) == [
        f"{service['ExecStart']} check-config",
        "/bin/kill -HUP $MAINPID",
    ]
    assert float(service["TimeoutStopSec"].removesuffix("s")) > DEFAULTS.drain_s + 2
    assert service["RuntimeDirectoryPreserve"] == "yes"


def test_the_service_may_write_what_the_daemon_writes() -> None:
    service = unit(SERVICE)["Service"]
    settings = Settings()
    assert service["ProtectControlGroups"] == "no"
    assert settings.cgroups.root in service["ReadWritePaths"].split()
    assert f"/var/lib/{service['StateDirectory']}" == settings.state.dir
    assert f"/run/{service['RuntimeDirectory']}" == str(Path(settings.proxy.endpoint).parent).removeprefix(
        "/var"
    )
    folders = {f"/etc/{name}" for name in service["ConfigurationDirectory"].split()}
    of_config = str(Path(DEFAULT_CONFIG_PATH).parent)
    assert folders == {of_config, settings.node.objects_dir, settings.hooks.server_config_dir}


def test_the_readmes_name_every_file() -> None:
    for path in (path for path in UNITS.rglob("*") if path.is_file() and path.name != "README.md"):
        readmes = [folder / "README.md" for folder in path.parents if folder.is_relative_to(UNITS)]
        texts = [readme.read_text() for readme in readmes if readme.exists()]
        assert any(path.name in text for text in texts), path
