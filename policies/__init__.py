"""The proxy's own policies, one per file. Importing this package imports none of them."""

from typing import Final

BUILT_IN: Final = (
    "policies.accelerators:Accelerators",
    "policies.batch_resource:BatchResource",
    "policies.block_io:BlockIO",
    "policies.core_sched:CoreSched",
    "policies.cpu_burst:CpuBurst",
    "policies.cpu_idle:CpuIdle",
    "policies.cpu_normalization:CpuNormalization",
    "policies.cpuset:Cpuset",
    "policies.gpu_env:GpuEnv",
    "policies.group_identity:GroupIdentity",
    "policies.katalyst_pools:KatalystPools",
    "policies.katalyst_qos:KatalystLevels",
    "policies.memory_qos:MemoryQoS",
    "policies.network_qos:NetworkQoS",
    "policies.oom_score:OomScore",
    "policies.rdma_devices:RdmaDevices",
    "policies.resctrl:ResctrlPolicy",
    "policies.startup_boost:StartupBoost",
    "policies.system_config:SystemConfig",
)
"""The built-in policies as `module:Class`; those with `is_default` run unless they are disabled."""
