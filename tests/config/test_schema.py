"""How settings are described and checked, and what that costs."""

import subprocess
import sys
from pathlib import Path

import pytest


def test_a_type_that_settings_do_not_use_has_no_schema() -> None:
    from runtimeproxy.config.schema import schema_of

    for hint in (set[int], bytes, int | str, tuple[int, int]):
        with pytest.raises(TypeError, match="settings have no type"):
            schema_of(hint)


def test_flags_alone_do_not_cost_the_import_of_pydantic() -> None:
    program = """
import argparse, sys
from runtimeproxy.config.sources import read
read(argparse.Namespace(proxy_endpoint="/x"), {})
print([name for name in ("pydantic", "tomllib", "json", "grpc") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_file_does_not_cost_the_import_of_all_of_pydantic(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text("[log]\nlevel = 'debug'")
    program = f"""
import argparse, sys
from runtimeproxy.config.sources import read
read(argparse.Namespace(config={str(file)!r}), {{}})
print(*(name in sys.modules for name in ("pydantic", "pydantic_core", "pydantic_core._pydantic_core")))
import pydantic_core
print(pydantic_core.SchemaValidator({{"type": "int"}}).validate_python("1"))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False False True\n1\n", "and what comes later has all of it"
