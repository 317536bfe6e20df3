"""Package ``runtime.v1alpha1``: Koordinator's hook service, which koordlet serves.

Messages are in ``api_pb2``, client stubs and servicers (these import grpc) in ``api_pb2_grpc``.
"""

from typing import Final

PACKAGE: Final = "runtime.v1alpha1"
"""Name of the protobuf package."""

HOOK_SERVICE: Final = "runtime.v1alpha1.RuntimeHookService"
"""Full name of the service; a call's path is ``/<service>/<method>``."""
