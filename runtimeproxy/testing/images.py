"""Images of the fake runtime: references, ids and the store."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

DEFAULT_SIZE_BYTES = 2_000_000
"""Size of an image for which none is given."""


@dataclass(frozen=True)
class Image:
    """One image.

    Attributes:
        id: ``sha256:`` and 64 hexadecimal digits.
        tag: Full reference with tag.
        digest: Full reference with digest.
        size_bytes: Size.
    """

    id: str
    tag: str
    digest: str
    size_bytes: int = DEFAULT_SIZE_BYTES


def normalized(reference: str) -> str:
    """Full form of an image reference: ``busybox`` is ``docker.io/library/busybox:latest``."""
    if reference.startswith("sha256:"):
        return reference
    registry, slash, rest = reference.partition("/")
    if not slash:
        reference = f"docker.io/library/{reference}"
    elif not (set(registry) & {".", ":"}) and registry != "localhost":
        reference = f"docker.io/{registry}/{rest}"
    has_tag = "@" in reference or ":" in reference.rsplit("/", 1)[-1]
    return reference if has_tag else f"{reference}:latest"


@lru_cache(maxsize=256)
def image_of(reference: str, size_bytes: int = DEFAULT_SIZE_BYTES) -> Image:
    """An image for a reference; the same reference always gives the same ids."""
    tag = normalized(reference)
    name = tag.split("@", 1)[0].rsplit(":", 1)[0]
    return Image(f"sha256:{_hash(tag)}", tag, f"{name}@sha256:{_hash(tag + '@')}", size_bytes)


class ImageStore:
    """Images that were pulled, found by id, tag or digest."""

    def __init__(self) -> None:
        self._images: dict[str, Image] = {}

    def __iter__(self) -> Iterator[Image]:
        return iter(list(self._images.values()))

    def find(self, reference: str) -> Image | None:
        """The image with this id, tag or digest, or ``None``."""
        wanted = normalized(reference)
        images = (image for image in self if wanted in {image.id, image.tag, image.digest})
        return next(images, None)

    def add(self, reference: str, size_bytes: int = DEFAULT_SIZE_BYTES) -> Image:
        """Adds the image of a reference, as a pull does, and returns it."""
        image = self.find(reference) or image_of(reference, size_bytes)
        self._images[image.id] = image
        return image

    def remove(self, reference: str) -> bool:
        """Removes an image; False if there was none."""
        image = self.find(reference)
        return image is not None and self._images.pop(image.id, None) is not None


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
