"""The proxy's own policies, one per file. Importing this package imports none of them."""

from typing import Final

BUILT_IN: Final = (
    "policies.batch_resource:BatchResource",
    "policies.cpuset:Cpuset",
    "policies.gpu_env:GpuEnv",
)
"""All policies that are loaded by default, as `module:Class`; they run in the order of their priorities."""
