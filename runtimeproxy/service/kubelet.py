"""Where versions before 0.2 have their search for kubelets: such a daemon imports it at its end.

Once this version is installed over it, it would end with an error without this module.
"""

from runtimeproxy.kubelet_endpoints import is_enabled_unit, kubelet_settings

__all__ = ["is_enabled_unit", "kubelet_settings"]
