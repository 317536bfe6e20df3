"""Package ``runtimeproxy.v1``: status, explanations and steering of the daemon.

Messages are in ``api_pb2``, client stubs and servicers (these import grpc) in ``api_pb2_grpc``.
"""

from typing import Final

PACKAGE: Final = "runtimeproxy.v1"
"""Name of the protobuf package."""

READ_SERVICE: Final = "runtimeproxy.v1.RuntimeProxy"
"""Full name of the service that reads; on the kubelet's socket and on the admin socket."""

ADMIN_SERVICE: Final = "runtimeproxy.v1.Admin"
"""Full name of the service that writes; on the admin socket only."""
