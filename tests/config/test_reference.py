"""The configuration reference is made of the settings."""

from pathlib import Path

from tests.config.reference import reference

COMMITTED = Path(__file__).parents[2] / "systemd" / "CONFIGURATION.md"


def test_the_committed_reference_is_up_to_date() -> None:
    assert COMMITTED.read_text() == reference(), "write the output of python -m tests.config.reference to it"


def test_a_key_with_all_that_there_is_to_say() -> None:
    assert """
### `drain_s = 3.0`

Seconds, 0 to 600 · `KOORD_RUNTIMEPROXY_PROXY_DRAIN_S` · restart

""" in reference()
    assert """
### `level = "info"`

`"debug"` or `"info"` or `"warning"` or `"error"` · `KOORD_RUNTIMEPROXY_LOG_LEVEL` · `--log-level` · reload

""" in reference()
