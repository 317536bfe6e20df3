"""The generator and the committed stubs."""

from pathlib import Path

import pytest

from cri_api import generate

PROTO = 'syntax = "proto3"; package probe; message Probe { string name = 1; }\n'


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with one small .proto file and its stubs."""
    (tmp_path / "probe.proto").write_text(PROTO, encoding="utf-8")
    generate.generate(tmp_path, tmp_path, ["probe.proto"])
    return tmp_path


def test_committed_stubs_are_what_the_protos_give() -> None:
    assert generate.drift() == []


def test_check_ends_with_zero_when_nothing_differs() -> None:
    assert generate.main(["--check"]) == 0


def test_generated_stubs_do_not_drift(root: Path) -> None:
    assert generate.drift(root, ["probe.proto"]) == []


def test_changed_proto_drifts(root: Path) -> None:
    (root / "probe.proto").write_text(PROTO.replace("= 1", "= 2"), encoding="utf-8")
    assert "probe_pb2.py" in generate.drift(root, ["probe.proto"])


def test_missing_stub_drifts(root: Path) -> None:
    (root / "probe_pb2.pyi").unlink()
    assert generate.drift(root, ["probe.proto"]) == ["probe_pb2.pyi"]


def test_broken_proto_is_named_in_the_error(root: Path) -> None:
    (root / "probe.proto").write_text("message", encoding="utf-8")
    with pytest.raises(generate.GenerateError, match=r"probe\.proto"):
        generate.drift(root, ["probe.proto"])


def test_apis_of_ttrpc_have_no_stubs_of_grpc() -> None:
    protos = ["cri_api/ttrpc/request.proto"]
    assert generate.stub_paths(protos) == ["cri_api/ttrpc/request_pb2.py", "cri_api/ttrpc/request_pb2.pyi"]
