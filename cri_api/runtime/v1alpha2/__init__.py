"""Package ``runtime.v1alpha2``: the CRI of the kubelet up to 1.25.

Its messages have the field numbers and types of ``runtime.v1``, so they are parsed and built with
the classes of ``cri_api.runtime.v1.api_pb2``. Only the service names, and with them the paths of
the calls, differ; there is no .proto file.
"""

from typing import Final

PACKAGE: Final = "runtime.v1alpha2"
"""Name of the protobuf package."""

RUNTIME_SERVICE: Final = "runtime.v1alpha2.RuntimeService"
"""Full name of the service for pods and containers; a call's path is ``/<service>/<method>``."""

IMAGE_SERVICE: Final = "runtime.v1alpha2.ImageService"
"""Full name of the service for images."""


def v1_path(path: str) -> str:
    """Path of the same call in ``runtime.v1``; any other path is returned as it is.

    Example: ``/runtime.v1alpha2.RuntimeService/Version`` gives
    ``/runtime.v1.RuntimeService/Version``.
    """
    prefix = f"/{PACKAGE}."
    return f"/runtime.v1.{path.removeprefix(prefix)}" if path.startswith(prefix) else path
