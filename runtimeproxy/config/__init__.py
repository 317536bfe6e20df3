"""The daemon's settings: flag over environment over file over default."""

from runtimeproxy.config.settings import (
    DEFAULT_CONFIG_PATH,
    CgroupsSettings,
    HooksSettings,
    LogSettings,
    ProxySettings,
    Settings,
    StateSettings,
)
from runtimeproxy.config.sources import FLAGS, Flag, Reading, config_path, load, read
from runtimeproxy.config.validation import (
    CombinedConfigError,
    is_same_socket,
    owner_ids,
    parse_endpoint,
    socket_mode_bits,
)

__all__ = [
    "DEFAULT_CONFIG_PATH",
    "FLAGS",
    "CgroupsSettings",
    "CombinedConfigError",
    "Flag",
    "HooksSettings",
    "LogSettings",
    "ProxySettings",
    "Reading",
    "Settings",
    "StateSettings",
    "config_path",
    "is_same_socket",
    "load",
    "owner_ids",
    "parse_endpoint",
    "read",
    "socket_mode_bits",
]
