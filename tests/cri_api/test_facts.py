"""The descriptors against the wire facts of the CRI, of Koordinator's hook service, of NRI and of ttrpc.

A fact is one line: ``number [repeated] type name [deprecated]`` for a field, ``request -> [stream]
response`` for a call.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor, FileDescriptor, MethodDescriptor

from cri_api.koordinator.v1alpha1 import api_pb2 as hooks_pb2
from cri_api.nri.v1alpha1 import api_pb2 as nri_pb2
from cri_api.runtime.v1 import api_pb2
from cri_api.ttrpc import request_pb2

Facts = dict[str, Any]

FOLDER = Path(__file__).parent / "facts"
FILES = {
    "runtime_v1": api_pb2.DESCRIPTOR,
    "runtime_v1alpha1": hooks_pb2.DESCRIPTOR,
    "nri_v1alpha1": nri_pb2.DESCRIPTOR,
    "ttrpc": request_pb2.DESCRIPTOR,
}
SCALARS = {
    FieldDescriptor.TYPE_BOOL: "bool",
    FieldDescriptor.TYPE_BYTES: "bytes",
    FieldDescriptor.TYPE_DOUBLE: "double",
    FieldDescriptor.TYPE_INT32: "int32",
    FieldDescriptor.TYPE_INT64: "int64",
    FieldDescriptor.TYPE_STRING: "string",
    FieldDescriptor.TYPE_UINT32: "uint32",
    FieldDescriptor.TYPE_UINT64: "uint64",
}


def load(name: str) -> Facts:
    facts: Facts = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return facts


def facts_of(kind: str) -> Iterator[tuple[FileDescriptor, str, Any]]:
    """File, name and facts of each message, enum or service."""
    for name, file in FILES.items():
        for fact, content in load(name)[kind].items():
            yield file, fact, content


def short(full_name: str, file: FileDescriptor) -> str:
    return full_name.removeprefix(f"{file.package}.")


def type_name(field: FieldDescriptor) -> str:
    if field.enum_type is not None:
        return short(field.enum_type.full_name, field.enum_type.file)
    if field.message_type is None:
        return SCALARS[field.type]
    if field.message_type.GetOptions().map_entry:
        key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
        return f"map<{type_name(key)}, {type_name(value)}>"
    return short(field.message_type.full_name, field.message_type.file)


def field_fact(field: FieldDescriptor) -> str:
    is_map = field.message_type is not None and field.message_type.GetOptions().map_entry
    words = [
        str(field.number),
        "repeated" if field.is_repeated and not is_map else "",
        type_name(field),
        field.name,
        "deprecated" if field.GetOptions().deprecated else "",
    ]
    return " ".join(word for word in words if word)


def call_fact(method: MethodDescriptor) -> str:
    streams = ("stream " if method.client_streaming else "", "stream " if method.server_streaming else "")
    request, response = (
        short(message.full_name, method.containing_service.file)
        for message in (method.input_type, method.output_type)
    )
    return f"{streams[0]}{request} -> {streams[1]}{response}"


def messages_of(file: FileDescriptor) -> dict[str, Descriptor]:
    """All messages of a file with the nested ones, without the entries of maps."""
    found: dict[str, Descriptor] = {}
    queue = list(file.message_types_by_name.values())
    while queue:
        message = queue.pop()
        if not message.GetOptions().map_entry:
            found[short(message.full_name, file)] = message
        queue.extend(message.nested_types)
    return found


def enums_of(file: FileDescriptor) -> dict[str, dict[str, int]]:
    nested = (message.enum_types for message in messages_of(file).values())
    scopes = [list(file.enum_types_by_name.values()), *nested]
    return {
        short(enum.full_name, file): {value.name: value.number for value in enum.values}
        for scope in scopes
        for enum in scope
    }


def test_messages_have_the_fields_of_the_facts() -> None:
    for file, name, fields in facts_of("messages"):
        message = messages_of(file)[name]
        assert sorted(field_fact(field) for field in message.fields) == sorted(fields), name
        assert list(message.oneofs) == [], name


def test_enums_have_the_values_of_the_facts() -> None:
    for file, name, values in facts_of("enums"):
        assert enums_of(file)[name] == values, name


def test_services_have_the_calls_of_the_facts() -> None:
    for file, name, calls in facts_of("services"):
        methods = file.services_by_name[name].methods
        assert {method.name: call_fact(method) for method in methods} == calls, name


@pytest.mark.parametrize("name", FILES)
def test_nothing_beyond_the_facts_is_defined(name: str) -> None:
    facts, file = load(name), FILES[name]
    assert file.package == facts["package"]
    assert set(messages_of(file)) == set(facts["messages"])
    assert set(enums_of(file)) == set(facts["enums"])
    assert set(file.services_by_name) == set(facts["services"])


def test_the_cri_is_complete() -> None:
    calls = [method for service in api_pb2.DESCRIPTOR.services_by_name.values() for method in service.methods]
    assert len(calls) == 43
    assert len(messages_of(api_pb2.DESCRIPTOR)) == 175


def test_environment_values_need_not_be_utf8() -> None:
    raw = api_pb2.KeyValue(key="K", value=b"\xff\xfe").SerializeToString()
    assert api_pb2.KeyValue.FromString(raw).value == b"\xff\xfe"


def test_what_nri_says_of_a_program_need_not_be_utf8() -> None:
    text = b"\xff\xfe"
    hooks = nri_pb2.Hooks(prestart=[nri_pb2.Hook(args=[text], env=[text])])
    container = nri_pb2.Container(args=[text], env=[b"K=" + text], hooks=hooks)
    synchronize = nri_pb2.SynchronizeRequest(containers=[container])
    assert nri_pb2.SynchronizeRequest.FromString(synchronize.SerializeToString()) == synchronize
    adjust = nri_pb2.ContainerAdjustment(args=[text], env=[nri_pb2.KeyValue(key="K", value=text)])
    assert nri_pb2.ContainerAdjustment.FromString(adjust.SerializeToString()) == adjust


def test_absent_and_zero_differ_in_nri() -> None:
    zero = nri_pb2.LinuxCPU(quota=nri_pb2.OptionalInt64(value=0))
    read = nri_pb2.LinuxCPU.FromString(zero.SerializeToString())
    assert read.HasField("quota")
    assert not read.HasField("period")
