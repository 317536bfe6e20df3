"""Documentation and help name only what is there."""

from __future__ import annotations

import io
import json
import re
from contextlib import redirect_stdout
from functools import cache
from pathlib import Path

import pytest

from cri_api.koordinator.v1alpha1 import HOOK_SERVICE
from runtimeproxy.cli import main
from runtimeproxy.config.settings import DEFAULT_CONFIG_PATH, Settings
from runtimeproxy.hooks.remote.registrations import ANSWERS, HOOK_NAMES, TIMEOUT, parse_registration

ROOT = Path(__file__).parents[2]
COMPARISON = ROOT / "systemd" / "coming-from-koordinator.md"
PROFILING_DROP_IN = ROOT / "systemd" / "koord-qos-manager.service.d" / "20-profiling.conf"
HOOK_SERVERS = ROOT / "runtimeproxy" / "hooks" / "remote" / "README.md"
DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "systemd" / "README.md",
    ROOT / "systemd" / "FAILURES.md",
    ROOT / "systemd" / "TROUBLESHOOTING.md",
    COMPARISON,
    ROOT / "systemd" / "config.toml",
    HOOK_SERVERS,
]
SETTINGS = Settings()

KOORDLETS_FLAGS = {
    "--default-runtime-type",
    "--disable-unset-cpu-quota",
    "--enable-nri-runtime-hook",
    "--hami-core-library-directory-path",
    "--runtime-hooks-addr",
    "--runtime-hooks-config-path",
    "--runtime-hooks-disable-stages",
    "--runtime-hooks-failure-policy",
    "--runtime-hooks-host-endpoint",
    "--runtime-hooks-network",
    "--runtime-hooks-nri-backoff-cap",
    "--runtime-hooks-nri-backoff-duration",
    "--runtime-hooks-nri-backoff-factor",
    "--runtime-hooks-nri-backoff-steps",
    "--runtime-hooks-nri-connect-timeout",
    "--runtime-hooks-nri-plugin-index",
    "--runtime-hooks-nri-plugin-name",
    "--runtime-hooks-nri-socket-path",
    "--runtime-hooks-plugin-failure-policy",
    "--runtime-hooks-reconcile-interval",
}
"""Of its hooks. Source: Koordinator pkg/koordlet/runtimehooks/config.go, pkg/koordlet/util/system."""
KOORDLETS_HOOK_GATES = {
    "BECPUManager",
    "BatchResource",
    "CPUNormalization",
    "CPUSetAllocator",
    "CoreSched",
    "GPUEnvInject",
    "GroupIdentity",
    "HamiCoreVGPUMonitor",
    "OOMScoreAdj",
    "RDMADeviceInject",
    "Resctrl",
    "TCNetworkQoS",
    "TerwayQoS",
}
"""Source: Koordinator pkg/koordlet/runtimehooks/config.go, pkg/features/koordlet_features.go."""

FOREIGN_FLAGS = KOORDLETS_FLAGS | {
    "--container-runtime-endpoint",
    "--feature-gates",
    "--image-service-endpoint",
    "--kill-who",
    "--logtostderr",
}
"""The kubelet's, koordlet's and systemctl's, where no command stands before them, and klog's."""

DEFAULT_PATHS = {
    SETTINGS.proxy.endpoint,
    SETTINGS.proxy.runtime_endpoint,
    SETTINGS.hooks.server_config_dir,
    SETTINGS.state.dir,
    DEFAULT_CONFIG_PATH,
}

every_document = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))


@cache
def help_text(*command: str) -> str:
    printed = io.StringIO()
    with redirect_stdout(printed), pytest.raises(SystemExit):
        main([*command, "--help"])
    return printed.getvalue()


def commands() -> set[str]:
    _, _, listed = help_text().partition("\ncommands:\n")
    return set(re.findall(r"^ {4}([a-z][a-z-]+)", listed.partition("\n\n")[0], flags=re.MULTILINE))


def flags() -> set[str]:
    texts = [help_text(), *(help_text(command) for command in commands())]
    return {
        flag for text in texts for flag in re.findall(r"^ +(?:-\w, )?(--[a-z][a-z-]+)", text, re.MULTILINE)
    }


def code(document: Path) -> str:
    """The blocks and spans of a document that are set as code."""
    text = document.read_text()
    if document.suffix != ".md":
        return text
    blocks = re.findall(r"^ *```.*?^ *```", text, flags=re.MULTILINE | re.DOTALL)
    return "\n".join(blocks + re.findall(r"`([^`\n]+)`", text))


@pytest.mark.defect(25)
@every_document
def test_flags_are_there(document: Path) -> None:
    """The command line of the instructions had a flag that the program refuses."""
    own = [
        line
        for line in code(document).splitlines()
        if re.match(r"\s*(--|(\S*[/=])?koord-runtime-proxy(\s|$))", line)
    ]
    named = {flag for line in own for flag in re.findall(r"(?<![\w-])--[a-z][a-z-]+", line)}
    assert named - FOREIGN_FLAGS <= flags()


@pytest.mark.defect(25)
@every_document
def test_commands_are_there(document: Path) -> None:
    named = re.findall(r"(?:^|[\s`/])koord-runtime-proxy ([a-z][a-z-]+)", code(document))
    assert {name for name in named if not name.startswith("koord")} <= commands()


@pytest.mark.defect(25)
@every_document
def test_hooks_are_there(document: Path) -> None:
    named = set(re.findall(r"\b(?:Pre|Post)[A-Z]\w+", document.read_text()))
    assert named <= set(HOOK_NAMES)


@pytest.mark.defect(25)
@pytest.mark.parametrize("document", [HOOK_SERVERS, COMPARISON], ids=lambda path: path.name)
def test_all_hooks_are_named(document: Path) -> None:
    """5 of 7 were."""
    assert all(f"`{name}`" in document.read_text() for name in HOOK_NAMES)


@pytest.mark.defect(25)
@every_document
def test_paths_are_the_defaults(document: Path) -> None:
    """`/run` is where `/var/run` leads."""
    own = (
        r"(?:/var)?/run/koord-runtimeproxy/runtimeproxy[\w.-]*|/etc/(?:runtime|koord-runtime-proxy)/[\w.-]*\w"
    )
    own += r"|(?:/var)?/run/containerd/[\w.-]*\w|/var/lib/koord[\w-]*"
    named = re.findall(rf"(?<![\w/])(?:{own})", document.read_text())
    known = {path.replace("/var/run", "/run") for path in DEFAULT_PATHS}
    known |= {SETTINGS.hooks.policies_dir, SETTINGS.node.objects_dir}
    state_of_manager = re.findall(r"^StateDirectory=(\S+)$", PROFILING_DROP_IN.read_text(), re.MULTILINE)
    known |= {f"/var/lib/{name}" for name in state_of_manager}
    assert {path.replace("/var/run", "/run") for path in named} <= known


@pytest.mark.defect(25)
@every_document
def test_keys_are_there(document: Path) -> None:
    groups = "proxy|hooks|cgroups|state|log"
    for group, key in re.findall(rf"(?<![\w./-])({groups})\.([a-z]\w+)\b(?![\w/(-])", code(document)):
        assert hasattr(getattr(SETTINGS, group), key), f"{group}.{key}"


@pytest.mark.defect(25)
def test_the_help_shows_the_real_defaults() -> None:
    """Lines are broken at hyphens."""
    text = re.sub(r"\s+", "", help_text())
    assert all(path in text for path in DEFAULT_PATHS)


@pytest.mark.defect(25)
def test_the_help_says_label_where_it_means_one() -> None:
    """It said annotation, which has no effect."""
    _, _, about = help_text().partition("--runtime-hook-server-key")
    assert "label" in about.partition("--runtime-hook-server-val")[0]
    assert "annotation" not in about.partition("--hook-config-dir")[0]


@pytest.mark.defect(25)
def test_the_registration_of_the_instructions_is_right() -> None:
    (example,) = re.findall(r"```json\n(.*?)```", HOOK_SERVERS.read_text(), flags=re.DOTALL)
    registration, problems = parse_registration(
        "koordlet.json", example.encode(), SETTINGS.hooks.server_timeout_s
    )
    assert registration is not None
    assert problems == ()
    keys = {*json.loads(example), TIMEOUT, ANSWERS}
    _, _, section = HOOK_SERVERS.read_text().partition("\n## Registration\n")
    table = section.partition("\n## ")[0]
    assert keys == set(re.findall(r"^\| `([a-z]+(?:-[a-z]+)*)` \|", table, flags=re.MULTILINE))


@pytest.mark.defect(25)
def test_the_old_command_line_is_taken(capsys: pytest.CaptureFixture[str]) -> None:
    """That of the instructions, with the flag that the program itself had lost."""
    old = ["--remote-runtime-service-endpoint=/var/run/containerd/containerd.sock"]
    old.append("--remote-image-service-endpoint=/var/run/containerd/containerd.sock")
    old += ["--backend-runtime-mode=Containerd", "--koord-runtimeproxy-endpoint=/var/run/koord/x.sock"]
    old += ["--runtime-hook-server-key=skip", "--runtime-hook-server-val=yes"]
    assert main([*old, "check-config"]) == 0
    assert "the configuration is valid" in capsys.readouterr().out


@pytest.mark.defect(25)
def test_what_is_the_same_is_the_same() -> None:
    """The page for users of Koordinator's proxy."""
    _, _, section = COMPARISON.read_text().partition("\n## The same\n")
    same = section.partition("\n## ")[0]
    skip = f"{SETTINGS.hooks.skip_label_key}={SETTINGS.hooks.skip_label_value}"
    for word in (SETTINGS.proxy.endpoint, SETTINGS.proxy.runtime_endpoint, HOOK_SERVICE, skip):
        assert f"`{word}`" in same
    assert f"`{SETTINGS.hooks.server_config_dir}`" in same


def test_the_page_names_all_of_koordlet_that_stands_for_nri() -> None:
    _, _, section = COMPARISON.read_text().partition("\n## In place of koordlet's NRI\n")
    section = section.partition("\n## ")[0]
    assert set(re.findall(r"`(--[a-z-]+)", section)) == KOORDLETS_FLAGS
    assert {name for name in KOORDLETS_HOOK_GATES if f"`{name}`" not in section} == set()
    for key in re.findall(r"`(\w+\.\w+)`", section):
        table, _, name = key.partition(".")
        assert hasattr(getattr(SETTINGS, table), name)


@pytest.mark.defect(25)
def test_the_page_names_all_defects() -> None:
    _, _, section = COMPARISON.read_text().partition("\n## Better\n")
    numbers = re.findall(r"^\| [^|]*\(([\d, ]+)\) \|", section.partition("\n## ")[0], flags=re.MULTILINE)
    named = {int(number) for group in numbers for number in group.split(", ")}
    assert named == set(range(1, 28))
