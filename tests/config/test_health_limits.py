from __future__ import annotations

from pathlib import Path

import pytest

from modelreg.config.health_limits import HealthLimits, load_health_limits
from modelreg.config.keys import KEYS
from modelreg.registry.errors import ConfigError, UsageError


def test_every_limit_is_a_setting_and_every_setting_a_limit() -> None:
    assert {f"health.{name}" for name in HealthLimits._fields} == {k.name for k in KEYS if k.name.startswith("health.")}
    limits = load_health_limits(environment={})
    assert (limits.gpu_utilization, limits.gpu_memory, limits.stale_s) == (0.9, 0.85, 30.0)


def test_a_file_a_variable_and_a_flag_go_before_each_other(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text("[health]\ngpu_memory = 0.5\nstale_s = 5\nsustained_s = 1\n")
    limits = load_health_limits(
        path, environment={"MODELREG_HEALTH_STALE_S": "6"}, flags=[("health.sustained_s", "2.5")]
    )
    assert (limits.gpu_memory, limits.stale_s, limits.sustained_s) == (0.5, 6.0, 2.5)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gpu_utilization = 90", "must be a part above 0 and at most 1, found 90"),
        ("error_rate = 0", "must be a part above 0"),
        ("gpu_temperature_c = 400", "must be degrees Celsius above 0 and at most 200"),
        ("gpu_temperature_c = true", "must be degrees Celsius"),
        ("stale_s = -1", "must be a number of seconds above 0"),
        ("gpu_memory = 0.99", r"health.gpu_memory_critical is 0.95, below health.gpu_memory of 0.99"),
        ("stale_s = 1000", r"health.stale_critical_s is 600, below health.stale_s of 1000"),
        ("cpu = 1", "unknown key 'cpu'"),
    ],
)
def test_a_limit_that_is_none_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "config.toml"
    path.write_text(f"[health]\n{text}\n")
    with pytest.raises(ConfigError, match=message):
        load_health_limits(path, environment={})


def test_a_wrong_flag_is_wrong_usage() -> None:
    with pytest.raises(UsageError, match="there is no setting"):
        load_health_limits(environment={}, flags=[("health.gpu", "1")])
