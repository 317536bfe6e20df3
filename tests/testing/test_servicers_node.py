"""Calls about the runtime itself and its images."""

import json

import grpc

from cri_api.runtime.v1 import api_pb2
from tests.testing.servicer_client import Client


def test_the_runtime_names_itself_and_is_ready(client: Client) -> None:
    version = client.ok(api_pb2.VersionRequest())
    assert (version.runtime_name, version.runtime_api_version) == ("fake-runtime", "v1")
    status = client.ok(api_pb2.StatusRequest(verbose=True))
    assert {each.type: each.status for each in status.status.conditions} == {
        "RuntimeReady": True,
        "NetworkReady": True,
    }
    assert json.loads(status.info["config"]) == {"systemdCgroup": False}


def test_the_pod_network_range_is_kept(client: Client) -> None:
    request = api_pb2.UpdateRuntimeConfigRequest()
    request.runtime_config.network_config.pod_cidr = "10.1.0.0/24"
    client.ok(request)
    assert client.state.pod_cidr == "10.1.0.0/24"


def test_images_are_pulled_listed_and_removed(client: Client) -> None:
    spec = api_pb2.ImageSpec(image="busybox")
    assert not client.ok(api_pb2.ImageStatusRequest(image=spec)).HasField("image")
    pulled = client.ok(api_pb2.PullImageRequest(image=spec)).image_ref
    status = client.ok(api_pb2.ImageStatusRequest(image=spec, verbose=True))
    assert (status.image.id, "info" in status.info) == (pulled, True)
    listed = client.ok(api_pb2.ListImagesRequest()).images
    assert list(listed) == [status.image]
    assert list(client.stream(api_pb2.StreamImagesRequest(), 1)[0].images) == [status.image]
    client.ok(api_pb2.RemoveImageRequest(image=spec))
    assert not client.ok(api_pb2.ListImagesRequest()).images


def test_a_list_of_images_can_name_one(client: Client) -> None:
    for name in ("a", "b"):
        client.ok(api_pb2.PullImageRequest(image=api_pb2.ImageSpec(image=name)))
    wanted = api_pb2.ImageFilter(image=api_pb2.ImageSpec(image="b"))
    (image,) = client.ok(api_pb2.ListImagesRequest(filter=wanted)).images
    assert list(image.repo_tags) == ["docker.io/library/b:latest"]


def test_images_take_space(client: Client) -> None:
    client.state.images.add("a", 5)
    (usage,) = client.ok(api_pb2.ImageFsInfoRequest()).image_filesystems
    assert usage.used_bytes.value == 5


def test_an_image_without_a_name_is_refused(client: Client) -> None:
    assert client.call(api_pb2.PullImageRequest())[1] is grpc.StatusCode.INVALID_ARGUMENT
