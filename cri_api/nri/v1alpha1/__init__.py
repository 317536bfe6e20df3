"""Package ``nri.pkg.api.v1alpha1``: what a runtime and its NRI plugins say to each other.

Messages are in ``api_pb2``. The calls go by ttrpc, so there are no stubs of gRPC.
"""

from typing import Final

PACKAGE: Final = "nri.pkg.api.v1alpha1"
"""Name of the protobuf package."""

PLUGIN_SERVICE: Final = "nri.pkg.api.v1alpha1.Plugin"
"""Full name of the service that the plugin serves."""

RUNTIME_SERVICE: Final = "nri.pkg.api.v1alpha1.Runtime"
"""Full name of the service that the runtime serves."""
