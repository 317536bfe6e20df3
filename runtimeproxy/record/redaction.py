"""Takes secrets out of messages of the CRI and of records. Pure.

Values of environment variables, commands and arguments are never kept. Of annotations those are kept that
policies read: of Koordinator, Kubernetes and Katalyst. What is taken out is replaced by a keyed hash, so that
equal texts stay equal; the key is never written down, so a short text cannot be found by trying.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from runtimeproxy.hooks.audit import shown
from runtimeproxy.hooks.fields import ANNOTATIONS, ENV, Field, Value
from runtimeproxy.pods.resources import LAST_APPLIED, has_known_domain

if TYPE_CHECKING:
    from google._upb._message import FieldDescriptor as FieldOfC
    from google.protobuf.descriptor import FieldDescriptor as FieldOfPython
    from google.protobuf.message import Message

    FieldDescriptor = FieldOfC | FieldOfPython

MAX_ANNOTATION_CHARS: Final = 16 * 1024
"""Longest annotation that is kept; those that policies read have a few hundred characters."""
KEY_BYTES: Final = 32
"""Of the key of the hashes."""

_HASH_BYTES: Final = 8
_OF_KUBELET: Final = "io.kubernetes."
"""Prefix of the annotations that the kubelet makes."""
_CREDENTIAL_NAME: Final = re.compile(
    r"passw(or)?d|passphrase|secret|token|credential|api[-_.]?key|private[-_.]?key|access[-_.]?key|\bauth\b",
    re.IGNORECASE,
)
_CREDENTIAL: Final = re.compile(
    r"-----BEGIN |\bBearer\s|\beyJ[\w-]{8,}\.|\bA(KIA|SIA)[A-Z0-9]{12,}|://[^/\s:@]+:[^/\s@]+@|\bgh[pousr]_\w{20,}"
)
"""PEM, bearer tokens, JSON Web Tokens, keys of AWS, URLs with a password, tokens of GitHub."""
_LINES: Final = frozenset({"command", "args", "cmd"})
_SECRETS: Final = frozenset({"auth", "credential_spec", "password", "identity_token", "registry_token"})


def redact(message: Message, key: bytes) -> None:
    """Takes secrets, and fields that are not known, out of a message.

    `key`: of the hashes, random; `KEY_BYTES` long.
    """
    message.DiscardUnknownFields()
    _redact(message, key)


def _redact(message: Message, key: bytes) -> None:
    for field, value in message.ListFields():
        name = field.name
        if name == "envs":
            for each in value:
                each.value = b""
        elif name in _LINES:
            value[:] = [hashed(each, key) for each in value]
        elif name == "annotations":
            value.update(redacted_annotations(value, key))
        elif name in _SECRETS:
            message.ClearField(name)
        elif field.message_type is not None:
            for each in _messages_in(field, value):
                _redact(each, key)


def _messages_in(field: FieldDescriptor, value: Any) -> Iterable[Message]:  # noqa: ANN401 - of any field
    """The messages that are a field's value, its items, or the values of its map."""
    kind = field.message_type
    if kind is not None and kind.GetOptions().map_entry:
        return value.values() if kind.fields_by_name["value"].message_type is not None else ()
    return value if field.is_repeated else (value,)


def redacted_annotations(annotations: Mapping[str, str], key: bytes) -> dict[str, str]:
    return {name: annotation_value(name, value, key) for name, value in annotations.items()}


def annotation_value(name: str, value: str, key: bytes) -> str:
    """Returns the value of an annotation if it is kept, else its hash."""
    is_kept = keeps_annotation(name) and len(value) <= MAX_ANNOTATION_CHARS
    return value if is_kept and not _CREDENTIAL.search(value) else hashed(value, key)


def keeps_annotation(name: str) -> bool:
    """Whether the values of this annotation are kept, unless they are long or look like credentials."""
    is_known = name.startswith(_OF_KUBELET) or has_known_domain(name)
    return is_known and name != LAST_APPLIED and not _CREDENTIAL_NAME.search(name)


def hashed(text: str, key: bytes) -> str:
    """Returns the keyed hash of a text; an empty text stays empty."""
    if not text:
        return ""
    digest = hmac.digest(key, text.encode("utf-8", "surrogateescape"), hashlib.sha256)
    return f"redacted:{digest[:_HASH_BYTES].hex()}"


def shown_value(field: Field, value: Value) -> str:
    """Returns a field's value as the audit shows it; of an annotation that is not kept only `<set>`."""
    text = shown(field, value)
    if (
        text
        and field.group == ANNOTATIONS
        and not (keeps_annotation(field.key) and not _CREDENTIAL.search(text))
    ):
        return "<set>"
    return text


def is_shown(field: Field) -> bool:
    return field.group != ENV and (field.group != ANNOTATIONS or keeps_annotation(field.key))


def redacted_document(document: Mapping[str, Any], key: bytes) -> dict[str, Any]:
    """Returns the JSON of a record (`pods.checkpoint.codec`) without secrets."""
    found = dict(document)
    for name in ("annotations", "annotation_changes"):
        values = found.get(name)
        if isinstance(values, Mapping):
            found[name] = {
                each: None if value is None else annotation_value(each, str(value), key)
                for each, value in values.items()
            }
    return found
