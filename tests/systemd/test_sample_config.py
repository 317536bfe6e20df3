import argparse
import dataclasses
import re
import tomllib
from pathlib import Path
from typing import Any

from runtimeproxy.config.settings import TABLES, PluginSettings, Settings
from runtimeproxy.hooks import LabelOperator, LabelRequirement, LabelSelector
from runtimeproxy.hooks.settings import PolicySettings
from tests.config.reading import load

SAMPLE = Path(__file__).parents[2] / "systemd" / "config.toml"


def uncommented() -> str:
    """The sample with every `#key = value` in force."""
    return re.sub(r"^#(?=[a-z_]+ = )", "", SAMPLE.read_text(), flags=re.MULTILINE)


def test_the_sample_changes_nothing() -> None:
    assert load(argparse.Namespace(config=str(SAMPLE)), {}) == Settings()


def test_every_default_in_the_sample_is_the_daemons(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(uncommented())
    assert load(argparse.Namespace(config=str(file)), {}) == Settings()


def test_the_sample_has_every_key() -> None:
    table: dict[str, Any] = tomllib.loads(uncommented())
    for group in dataclasses.fields(Settings):
        if group.name not in TABLES:
            keys = {each.name for each in dataclasses.fields(getattr(Settings(), group.name))}
            assert set(table[group.name]) == keys


def test_the_sample_of_a_policy_is_one(tmp_path: Path) -> None:
    _, _, example = SAMPLE.read_text().partition("# [policies.batch-resource]")
    example, _, _ = example.partition("\n\n")
    file = tmp_path / "config.toml"
    file.write_text("[policies.batch-resource]" + example.replace("\n# ", "\n"))
    settings = load(argparse.Namespace(config=str(file)), {})
    assert set(tomllib.loads(file.read_text())["policies"]["batch-resource"]) == {
        each.name for each in dataclasses.fields(PolicySettings)
    }
    tier = LabelRequirement(key="tier", operator=LabelOperator.NOT_IN, values=("front",))
    selector = LabelSelector(match_labels={"app": "web"}, match_expressions=(tier,))
    assert settings.policies["batch-resource"] == PolicySettings(
        enabled=True, timeout_s=1.0, priority=20, selector=selector
    )


def test_the_sample_of_a_plugin_is_one(tmp_path: Path) -> None:
    _, _, example = SAMPLE.read_text().partition("# [plugins.cpu-evict]")
    file = tmp_path / "config.toml"
    file.write_text("[plugins.cpu-evict]" + example.replace("\n# ", "\n"))
    settings = load(argparse.Namespace(config=str(file)), {})
    assert settings.plugins == {"cpu-evict": PluginSettings(mode="dry-run")}
