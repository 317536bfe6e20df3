"""The image service of the fake runtime."""
# ruff: noqa: N802 - the methods are named as the calls are

from __future__ import annotations

from collections.abc import Iterator

import grpc

from cri_api.runtime.v1 import api_pb2, api_pb2_grpc
from runtimeproxy.testing.answers import image_entry, list_images
from runtimeproxy.testing.failures import CallError
from runtimeproxy.testing.servicing import chunks, stream, unary
from runtimeproxy.testing.state import RuntimeState

IMAGE_MOUNTPOINT = "/var/lib/containerd/io.containerd.snapshotter.v1.overlayfs"
"""File system that holds images and containers."""


class FakeImageService(api_pb2_grpc.ImageServiceServicer):
    """A synchronous servicer over the images of a state.

    Attributes:
        state: Holds the images.
    """

    def __init__(self, state: RuntimeState) -> None:
        self.state = state

    @unary
    def ListImages(
        self, request: api_pb2.ListImagesRequest, context: grpc.ServicerContext
    ) -> api_pb2.ListImagesResponse:
        """Lists images."""
        return api_pb2.ListImagesResponse(images=list_images(self.state, request.filter))

    @stream
    def StreamImages(
        self, request: api_pb2.StreamImagesRequest, context: grpc.ServicerContext
    ) -> Iterator[api_pb2.StreamImagesResponse]:
        """Lists images in several messages."""
        for chunk in chunks(list(list_images(self.state, request.filter))):
            yield api_pb2.StreamImagesResponse(images=chunk)

    @unary
    def ImageStatus(
        self, request: api_pb2.ImageStatusRequest, context: grpc.ServicerContext
    ) -> api_pb2.ImageStatusResponse:
        """Reports an image; a missing one gives an empty answer."""
        with self.state.lock:
            image = self.state.images.find(request.image.image)
        info = {"info": '{"chainID":""}'} if request.verbose and image is not None else {}
        return api_pb2.ImageStatusResponse(image=None if image is None else image_entry(image), info=info)

    @unary
    def PullImage(
        self, request: api_pb2.PullImageRequest, context: grpc.ServicerContext
    ) -> api_pb2.PullImageResponse:
        """Adds an image; every reference can be pulled."""
        if not request.image.image:
            raise CallError("INVALID_ARGUMENT", "no image reference")
        with self.state.lock:
            self.state.generation += 1
            image = self.state.images.add(request.image.image)
        return api_pb2.PullImageResponse(image_ref=image.id)

    @unary
    def RemoveImage(
        self, request: api_pb2.RemoveImageRequest, context: grpc.ServicerContext
    ) -> api_pb2.RemoveImageResponse:
        """Removes an image; a missing one is no error."""
        with self.state.lock:
            self.state.generation += 1
            self.state.images.remove(request.image.image)
        return api_pb2.RemoveImageResponse()

    @unary
    def ImageFsInfo(
        self, request: api_pb2.ImageFsInfoRequest, context: grpc.ServicerContext
    ) -> api_pb2.ImageFsInfoResponse:
        """Sum of the images' sizes."""
        with self.state.lock:
            used_bytes = sum(image.size_bytes for image in self.state.images)
        usage = api_pb2.FilesystemUsage(
            timestamp=self.state.clock_ns(),
            fs_id=api_pb2.FilesystemIdentifier(mountpoint=IMAGE_MOUNTPOINT),
            used_bytes=api_pb2.UInt64Value(value=used_bytes),
            inodes_used=api_pb2.UInt64Value(value=1000),
        )
        return api_pb2.ImageFsInfoResponse(image_filesystems=[usage], container_filesystems=[usage])
