"""The daemon's settings: flag over environment over file over default."""

from runtimeproxy.config.checks import owner_ids, socket_mode_bits
from runtimeproxy.config.endpoints import is_same_socket, parse_endpoint
from runtimeproxy.config.errors import CombinedConfigError
from runtimeproxy.config.flags import FLAGS, Flag
from runtimeproxy.config.loading import Reading, config_path, load, read
from runtimeproxy.config.settings import (
    DEFAULT_CONFIG_PATH,
    CgroupsSettings,
    HooksSettings,
    LogSettings,
    ProxySettings,
    Settings,
    StateSettings,
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
