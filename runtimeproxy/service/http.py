"""Requests and responses over HTTP: what the listener and the page of the node share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

PAGE_PATH: Final = "/page"
"""All paths of the page are this one, or below it; `/` leads to it."""


class HttpRequest(NamedTuple):
    """A request with GET or HEAD."""

    path: str
    query: str
    """What follows `?`; empty for none."""
    fields: Mapping[str, str]
    """Header fields by their names in lower case; of several with one name the last."""


class HttpResponse(NamedTuple):
    """A response, without the fields that all have."""

    status: str
    """Such as `200 OK`."""
    content_type: str
    data: bytes
    fields: tuple[tuple[str, str], ...] = ()
