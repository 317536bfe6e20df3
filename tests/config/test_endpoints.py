"""Sockets in settings: their paths, modes and owners."""

import os
import socket
from pathlib import Path

import pytest

from runtimeproxy.config.parsing import (
    MAX_SOCKET_PATH_BYTES,
    TEMPORARY_SUFFIX_BYTES,
    parse_collector,
    parse_endpoint,
    parse_listen,
    socket_mode_bits,
)
from runtimeproxy.config.settings import ProxySettings
from runtimeproxy.config.validation import CombinedConfigError, owner_ids
from runtimeproxy.listener import SocketPathError, listen
from tests.config.reading import loaded


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("/run/x.sock", "/run/x.sock"),
        ("unix:/run/x.sock", "/run/x.sock"),
        ("unix:///run/x.sock", "/run/x.sock"),
        ("unix:////run/x.sock", "/run/x.sock"),
        ("/run/a:b.sock", "/run/a:b.sock"),
    ],
)
def test_three_spellings_of_an_endpoint(text: str, path: str) -> None:
    assert parse_endpoint(text) == path


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no absolute path"),
        ("run/x.sock", "no absolute path"),
        ("unix://run/x.sock", "no absolute path"),
        ("unix:", "no absolute path"),
        ("@abstract", "no absolute path"),
        ("tcp://127.0.0.1:80", "is not a Unix socket"),
        ("npipe:////./pipe/x", "is not a Unix socket"),
        ("/run/", "does not name a file"),
        ("/run/\0", "does not name a file"),
    ],
)
def test_what_is_no_endpoint(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_endpoint(text)


def test_the_longest_own_socket_is_one_that_can_be_bound(tmp_path: Path) -> None:
    longest = "/tmp/" + "x" * (MAX_SOCKET_PATH_BYTES - TEMPORARY_SUFFIX_BYTES - len("/tmp/"))
    assert parse_endpoint(longest, spare_bytes=TEMPORARY_SUFFIX_BYTES) == longest
    with pytest.raises(ValueError, match="has 104 bytes, at most 103 are possible"):
        parse_endpoint(longest + "x", spare_bytes=TEMPORARY_SUFFIX_BYTES)
    with pytest.raises(SocketPathError):
        listen(longest + "x")


def test_a_long_runtime_socket_uses_all_bytes() -> None:
    longest = "/" + "ü" * 53
    assert parse_endpoint(longest) == longest
    with pytest.raises(ValueError, match="at most 107"):
        parse_endpoint(longest + "x")


def test_a_runtime_that_is_the_own_socket_is_refused(tmp_path: Path) -> None:
    folder, link = tmp_path / "run", tmp_path / "link"
    folder.mkdir()
    link.symlink_to(folder)
    reasons = []
    for key in ("proxy_runtime_endpoint", "proxy_image_endpoint"):
        with pytest.raises(CombinedConfigError) as raised:
            loaded(proxy_endpoint=f"{folder}/x.sock", **{key: f"unix://{link}/x.sock"})
        reasons.append(str(raised.value))
    assert all("is the proxy's own socket" in reason for reason in reasons)
    assert reasons[0].startswith("flag: --remote-runtime-service-endpoint: ")
    assert reasons[1].startswith("flag: --remote-image-service-endpoint: ")


def test_a_hard_link_to_the_own_socket_is_seen(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as own:
        own.bind(str(tmp_path / "own.sock"))
        os.link(tmp_path / "own.sock", tmp_path / "other.sock")
        with pytest.raises(CombinedConfigError, match="own socket"):
            loaded(
                proxy_endpoint=str(tmp_path / "own.sock"), proxy_runtime_endpoint=str(tmp_path / "other.sock")
            )


@pytest.mark.parametrize(("text", "bits"), [("0660", 0o660), ("600", 0o600), ("0777", 0o777)])
def test_socket_modes(text: str, bits: int) -> None:
    assert socket_mode_bits(text) == bits


@pytest.mark.parametrize("text", ["", "66", "0o660", "06600", "rw-rw----", "0668"])
def test_what_is_no_socket_mode(text: str) -> None:
    with pytest.raises(ValueError, match="not an octal mode"):
        socket_mode_bits(text)


def test_owners_by_name_and_number() -> None:
    assert owner_ids(ProxySettings()) == (-1, -1)
    assert owner_ids(ProxySettings(socket_owner="root", socket_group="root")) == (0, 0)
    assert owner_ids(ProxySettings(socket_owner="12", socket_group="34")) == (12, 34)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("", None),
        ("9751", ("127.0.0.1", 9751)),
        ("localhost:9751", ("127.0.0.1", 9751)),
        ("10.0.0.5:1", ("10.0.0.5", 1)),
        ("[::1]:65535", ("::1", 65535)),
        ("/run/m.sock", "/run/m.sock"),
        ("unix:///run/m.sock", "/run/m.sock"),
    ],
)
def test_addresses_to_listen_on(text: str, address: object) -> None:
    assert parse_listen(text) == address


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        *((text, "is not a port, an address") for text in ("0", "65536", "-1", "metrics", "1.2.3.4:")),
        (":9751", "'' is not an IP address"),
        ("host.example:9751", "'host.example' is not an IP address"),
        ("::1:9751", "an IPv6 address in brackets"),
        ("[10.0.0.1]:1", "and no other one"),
        ("unix:m", "has no absolute path"),
    ],
)
def test_what_is_no_address_to_listen_on(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_listen(text)


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [
        ("", ""),
        ("http://10.0.0.5:4318", "http://10.0.0.5:4318"),
        ("http://collector", "http://collector:4317"),
        ("https://otel.example.org/", "https://otel.example.org:4317"),
        ("http://[::1]:1", "http://[::1]:1"),
        ("/run/otel.sock", "/run/otel.sock"),
        ("unix:/run/otel.sock", "/run/otel.sock"),
    ],
)
def test_collectors(text: str, endpoint: str) -> None:
    assert parse_collector(text) == endpoint


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        *(
            (text, "is not a collector: write")
            for text in ("4317", "localhost:4317", "ftp://a", "http://a/v1")
        ),
        ("http://user:secret@a", "is not a collector: write"),
        ("http://a:65536", "65536 is not a port"),
        ("http://a:0", "0 is not a port"),
        ("unix:m", "has no absolute path"),
    ],
)
def test_what_is_no_collector(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_collector(text)
