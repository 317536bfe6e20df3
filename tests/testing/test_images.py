"""Image references and the image store."""

import pytest

from runtimeproxy.testing.state import ImageStore, image_of, normalized


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        ("busybox", "docker.io/library/busybox:latest"),
        ("busybox:1.36", "docker.io/library/busybox:1.36"),
        ("team/app", "docker.io/team/app:latest"),
        ("localhost/app", "localhost/app:latest"),
        ("registry.k8s.io/pause:3.10", "registry.k8s.io/pause:3.10"),
        ("host:5000/app", "host:5000/app:latest"),
        ("docker.io/library/a@sha256:12", "docker.io/library/a@sha256:12"),
        ("sha256:12", "sha256:12"),
    ],
)
def test_normalized(reference: str, expected: str) -> None:
    assert normalized(reference) == expected


def test_an_image_is_found_by_id_tag_and_digest() -> None:
    store = ImageStore()
    image = store.add("busybox")
    found = [store.find(name) for name in ("busybox:latest", image.id, image.digest)]
    assert found == [image] * 3


def test_adding_an_image_again_keeps_it() -> None:
    store = ImageStore()
    assert store.add("busybox", 5) is store.add("docker.io/library/busybox:latest")
    assert len(list(store)) == 1


def test_removing_tells_whether_there_was_an_image() -> None:
    store = ImageStore()
    store.add("busybox")
    assert store.remove("busybox")
    assert not store.remove("busybox")


def test_different_references_give_different_ids() -> None:
    assert image_of("a").id != image_of("b").id
