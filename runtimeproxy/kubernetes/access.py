"""Where the API server is and what identifies this client: a kubeconfig, or a pod's service account.

Only what needs no other program is read: certificates, keys and tokens, in files or in the kubeconfig.
"""

from __future__ import annotations

import base64
import binascii
import ipaddress
import os
import ssl
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from runtimeproxy.documents.files import Stamp, read_file, stamp_of
from runtimeproxy.documents.reading import (
    InputError,
    list_of,
    mapping_of,
    parse_documents,
    printable,
    shortened,
    text_of,
    within,
)
from runtimeproxy.errors import RuntimeProxyError

SERVICE_ACCOUNT_DIR: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Source: Kubernetes, "Accessing the Kubernetes API from a Pod"."""
MAX_FILE_BYTES: Final = 1024 * 1024
"""Of a kubeconfig, a certificate, a key or a token."""

_REFUSED: Final = {
    "exec": "runs a program for credentials, which the daemon does not do; use a token file or a certificate",
    "auth-provider": "is of no present Kubernetes; use a token file or a certificate",
    "username": "is of no present Kubernetes; use a token file or a certificate",
    "as": "acts as another user, which the daemon does not do; use credentials of its own",
}
"""Keys of a kubeconfig's user that are not supported, and why."""


class AccessError(RuntimeProxyError):
    """There is no usable way to the API server; says which file and key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """How one API server is reached. Keys and tokens are not shown by `repr`."""

    server: str
    """`https://host:port`, maybe with a path; `http://` on this host only."""
    source: str
    """The kubeconfig's path, or `service account`."""
    ssl_context: ssl.SSLContext | None = None
    server_name: str | None = None
    """The name that the server's certificate is checked for; None for the host's."""
    stamps: tuple[tuple[Path, Stamp | None], ...] = ()
    """The files that were read, but for the token's."""
    token_file: Path | None = None
    _token: str = ""

    def __repr__(self) -> str:
        return f"Access({self.server!r}, {self.source!r})"

    @property
    def is_current(self) -> bool:
        # Certificates rotate.
        return all(stamp_of(path) == stamp for path, stamp in self.stamps)

    def token(self) -> str:
        """The token of the next request, read anew from its file; empty for none. Raises AccessError."""
        if self.token_file is None:
            return self._token
        token = _read(self.token_file).decode("ascii", "replace").strip()
        return _checked_token(token, printable(self.token_file))


def load_access(kubeconfig: Path | None, environ: Mapping[str, str] = os.environ) -> Access:
    """Reads a kubeconfig's current context; without one, the pod's service account. Raises AccessError."""
    if kubeconfig is None:
        return _of_service_account(environ)
    try:
        documents = parse_documents(_read(kubeconfig))
        return _of_kubeconfig(kubeconfig, mapping_of(documents[0] if documents else None))
    except InputError as error:
        raise AccessError(f"{printable(kubeconfig)}: {error}") from None


def _of_service_account(environ: Mapping[str, str]) -> Access:
    host, port = environ.get("KUBERNETES_SERVICE_HOST"), environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        raise AccessError(
            "there is no KUBERNETES_SERVICE_HOST in the environment, as there is in a pod; "
            "set kubernetes.kubeconfig"
        )
    authority = f"{host}:{port}" if ":" not in host else f"[{host}]:{port}"
    ca_file = SERVICE_ACCOUNT_DIR / "ca.crt"
    stamps = ((ca_file, stamp_of(ca_file)),)
    return Access(
        server=f"https://{authority}",
        source="service account",
        ssl_context=_ssl_context(_read(ca_file), printable(ca_file)),
        stamps=stamps,
        token_file=SERVICE_ACCOUNT_DIR / "token",
    )


def _of_kubeconfig(path: Path, config: Mapping[str, Any]) -> Access:
    with within("current-context"):
        name = text_of(config.get("current-context"))
        if not name:
            raise InputError("is missing")
    context = _named(config, "contexts", name, "context")
    cluster_name, user_name = text_of(context.get("cluster")), text_of(context.get("user"))
    cluster = _named(config, "clusters", cluster_name, "cluster")
    user = _named(config, "users", user_name, "user") if user_name else {}
    reader = _FileReader(path)
    with within(f"clusters[{shortened(cluster_name)}]"):
        server = _server(cluster)
        _refuse_unsafe(cluster)
        authority, place = reader.content(cluster, "certificate-authority")
    with within(f"users[{shortened(user_name)}]"):
        for key, reason in _REFUSED.items():
            if user.get(key):
                raise InputError(reason, key)
        certificate, _ = reader.content(user, "client-certificate")
        key_data, _ = reader.content(user, "client-key")
        if bool(certificate) is not bool(key_data):
            raise InputError("needs both", "client-certificate and client-key")
        token, token_file = text_of(user.get("token")), text_of(user.get("tokenFile"))
        if token:
            _checked_token(token, "token")
        context_ = None
        if server.startswith("https:"):
            context_ = _ssl_context(authority, place, certificate, key_data)
    return Access(
        server=server,
        source=printable(path),
        ssl_context=context_,
        server_name=text_of(cluster.get("tls-server-name")) or None,
        stamps=tuple(reader.stamps.items()),
        # client-go takes the file if both are there.
        token_file=path.parent / token_file if token_file else None,
        _token=token,
    )


def _named(config: Mapping[str, Any], group: str, name: str, key: str) -> Mapping[str, Any]:
    with within(group):
        for each in list_of(config.get(group)):
            entry = mapping_of(each)
            if entry.get("name") == name:
                with within(f"[{shortened(name)}]"):
                    return mapping_of(entry.get(key))
    raise InputError(f"has no {shortened(repr(name))}", group)


def _server(cluster: Mapping[str, Any]) -> str:
    with within("server"):
        text = text_of(cluster.get("server")).rstrip("/")
        try:
            parts = urlsplit(text)
            host, _ = parts.hostname, parts.port
        except ValueError as error:
            raise InputError(str(error)) from None
        if parts.scheme not in ("https", "http") or not host or parts.username or parts.query:
            raise InputError(f"is {shortened(repr(text))}; write https://host:port")
        if parts.scheme == "http" and not _is_this_host(host):
            raise InputError("is not encrypted: http:// is for this host only")
        return text


def _is_this_host(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _refuse_unsafe(cluster: Mapping[str, Any]) -> None:
    if cluster.get("insecure-skip-tls-verify"):
        reason = "trusts any server with what this node does; give the certificate-authority"
        raise InputError(reason, "insecure-skip-tls-verify")
    if cluster.get("proxy-url"):
        raise InputError("is not supported; the daemon connects by itself", "proxy-url")


class _FileReader:
    """Reads files of a kubeconfig, whose paths are relative to its folder, and notes them."""

    def __init__(self, kubeconfig: Path) -> None:
        self._folder = kubeconfig.parent
        self.stamps: dict[Path, Stamp | None] = {kubeconfig: stamp_of(kubeconfig)}

    def content(self, entry: Mapping[str, Any], key: str) -> tuple[bytes, str]:
        """The content of `KEY-data`, else of the file of `KEY`, and its place; empty for neither."""
        with within(f"{key}-data"):
            if data := text_of(entry.get(f"{key}-data")):
                try:
                    return base64.b64decode("".join(data.split()), validate=True), f"{key}-data"
                except binascii.Error as error:
                    raise InputError(f"is not base64: {error}") from None
        with within(key):
            if not (name := text_of(entry.get(key))):
                return b"", key
            path = self._folder / name
            self.stamps[path] = stamp_of(path)
            try:
                return read_file(path, MAX_FILE_BYTES)[0], printable(path)
            except FileNotFoundError:
                raise InputError(f"there is no {printable(path)}") from None
            except InputError as error:
                raise InputError(f"{printable(path)} {error}") from None


def _ssl_context(authority: bytes, place: str, certificate: bytes = b"", key: bytes = b"") -> ssl.SSLContext:
    try:
        # Without an authority those of the system, as kubectl has it.
        context = ssl.create_default_context(cadata=authority.decode("ascii", "replace") or None)
    except (ssl.SSLError, ValueError):
        raise AccessError(f"{place}: has no usable certificate") from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if certificate:
        with ExitStack() as stack:
            # The library takes files only, and a key is not to be copied onto a disk.
            names = [_in_memory(stack, data) for data in (certificate, key)]
            try:
                context.load_cert_chain(*names)
            except (ssl.SSLError, OSError):
                reason = "do not fit together, or one of them cannot be used"
                raise AccessError(f"client-certificate and client-key {reason}") from None
    return context


def _in_memory(stack: ExitStack, data: bytes) -> str:
    file = stack.enter_context(os.fdopen(os.memfd_create("tls"), "wb"))
    file.write(data)
    file.flush()
    return f"/proc/self/fd/{file.fileno()}"


def _read(path: Path) -> bytes:
    try:
        return read_file(path, MAX_FILE_BYTES)[0]
    except FileNotFoundError:
        raise AccessError(f"there is no {printable(path)}") from None
    except InputError as error:
        raise AccessError(f"{printable(path)}: {error}") from None


def _checked_token(token: str, place: str) -> str:
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise AccessError(f"{place}: holds no token")
    return token
