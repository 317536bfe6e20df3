"""Package ``runtime.v1``: the CRI of Kubernetes 1.23 and later.

Messages are in ``api_pb2``, client stubs and servicers (these import grpc) in ``api_pb2_grpc``.
"""

from typing import Final

PACKAGE: Final = "runtime.v1"
"""Name of the protobuf package."""

RUNTIME_SERVICE: Final = "runtime.v1.RuntimeService"
"""Full name of the service for pods and containers; a call's path is ``/<service>/<method>``."""

IMAGE_SERVICE: Final = "runtime.v1.ImageService"
"""Full name of the service for images."""
