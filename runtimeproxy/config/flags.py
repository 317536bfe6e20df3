"""The command line flags that set a key; data for the parser and for the loading."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from runtimeproxy.config.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """A flag that overrides one key of the configuration."""

    option: str
    group: str
    key: str
    metavar: str
    help: str
    choices: tuple[str, ...] = ()

    @property
    def destination(self) -> str:
        """The attribute's name in the parsed arguments."""
        return f"{self.group}_{self.key}"

    @property
    def default(self) -> str:
        """The key's default, for the help."""
        return str(getattr(getattr(Settings(), self.group), self.key))


FLAGS: Final = (
    Flag(
        option="--koord-runtimeproxy-endpoint",
        group="proxy",
        key="endpoint",
        metavar="SOCKET",
        help="the socket that the kubelet connects to",
    ),
    Flag(
        option="--remote-runtime-service-endpoint",
        group="proxy",
        key="runtime_endpoint",
        metavar="SOCKET",
        help="the container runtime's socket",
    ),
    Flag(
        option="--remote-image-service-endpoint",
        group="proxy",
        key="image_endpoint",
        metavar="SOCKET",
        help="the image service's socket, where that is not the runtime",
    ),
    Flag(
        option="--runtime-hook-server-key",
        group="hooks",
        key="skip_label_key",
        metavar="KEY",
        help="pods with this label are left alone",
    ),
    Flag(
        option="--runtime-hook-server-val",
        group="hooks",
        key="skip_label_value",
        metavar="VALUE",
        help="the value that the label must have for that",
    ),
    Flag(
        option="--hook-config-dir",
        group="hooks",
        key="server_config_dir",
        metavar="DIR",
        help="folder in which hook servers register",
    ),
    Flag(
        option="--policies-dir",
        group="hooks",
        key="policies_dir",
        metavar="DIR",
        help="folder with policies in files (*.py)",
    ),
    Flag(
        option="--state-dir",
        group="state",
        key="dir",
        metavar="DIR",
        help="folder of the checkpoint, from which records come back after a restart",
    ),
    Flag(
        option="--log-level",
        group="log",
        key="level",
        metavar="LEVEL",
        help="lowest level that is logged: debug, info, warning, error",
        choices=("debug", "info", "warning", "error"),
    ),
    Flag(
        option="--log-format",
        group="log",
        key="format",
        metavar="FORMAT",
        help="auto (text on a terminal, else JSON), text, json",
        choices=("auto", "text", "json"),
    ),
)
