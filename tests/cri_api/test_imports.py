"""What an import of the stubs costs: each case in a fresh interpreter, warnings being errors."""

import subprocess
import sys

import pytest

CASES = {
    "package": ("import cri_api, cri_api.runtime.v1, cri_api.runtime.v1alpha2", {"google", "grpc"}),
    "generator": ("import cri_api.generate", {"google", "grpc", "grpc_tools"}),
    "messages": ("from cri_api.runtime.v1 import api_pb2", {"grpc"}),
    "hook messages": ("from cri_api.koordinator.v1alpha1 import api_pb2", {"grpc"}),
    "own messages": ("from cri_api.runtimeproxy.v1 import api_pb2", {"grpc"}),
    "NRI messages": ("from cri_api.nri.v1alpha1 import api_pb2", {"grpc"}),
    "ttrpc messages": ("from cri_api.ttrpc import request_pb2", {"grpc"}),
    "stubs": ("from cri_api.runtime.v1 import api_pb2_grpc", set()),
    "hook stubs": ("from cri_api.koordinator.v1alpha1 import api_pb2_grpc", set()),
}


@pytest.mark.parametrize(("statement", "unwanted"), CASES.values(), ids=CASES.keys())
def test_import_warns_of_nothing_and_stays_cheap(statement: str, unwanted: set[str]) -> None:
    script = f"{statement}; import sys; print(*sys.modules)"
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, check=True
    )
    assert not unwanted & set(run.stdout.split())
