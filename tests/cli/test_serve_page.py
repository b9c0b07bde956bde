"""What docs/serve.md says is run: its lines for curl, its program for Triton's client, its unit for systemd."""

from __future__ import annotations

import configparser
import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from modelreg.cli.main import cli
from modelreg.config.settings import ServeSettings
from modelreg.runtime.serve.limits import MIB, Limits
from modelreg_testing.checkout import ROOT
from modelreg_testing.http_serving import ServeProcess
from modelreg_testing.released_lenet import released_lenet

PAGE = (ROOT / "docs" / "serve.md").read_text(encoding="utf-8")
UNIT = ROOT / "examples" / "systemd" / "modelreg-serve@.service"


def block_after(marker: str) -> str:
    """Return the fenced block that follows the comment `<!-- marker: …`."""
    found = re.search(rf"<!-- {marker}:.*?-->\n```\w+\n(.*?)```", PAGE, re.DOTALL)
    assert found is not None, marker
    return found.group(1)


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    home, cache = released_lenet(tmp_path_factory), tmp_path_factory.mktemp("cache")
    with ServeProcess("lenet@production", "--home", home, "--http-port", 0, "--cache", cache, "--no-lease") as server:
        yield server.port
        assert server.stop() == 0


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl here")
def test_the_lines_for_curl(port: int, tmp_path: Path) -> None:
    tensor = {"name": "image", "datatype": "FP32", "shape": [1, 1, 28, 28], "data": [0.5] * 784}
    (tmp_path / "request.json").write_text(json.dumps({"inputs": [tensor]}))
    lines = block_after("curl").replace(":8000", f":{port}").splitlines()
    ready, model, answer = (
        json.loads(subprocess.run(shlex.split(line), cwd=tmp_path, capture_output=True, check=True).stdout)
        for line in lines
    )
    assert ready == {"ready": True}
    assert model["name"] == "lenet"
    shown = json.loads(re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)[0])
    assert answer.keys() == shown.keys()
    assert answer["parameters"].keys() == shown["parameters"].keys()
    assert answer["outputs"][0]["shape"] == shown["outputs"][0]["shape"]


@pytest.mark.slow
def test_the_program_for_tritons_client(port: int) -> None:
    program = block_after("tritonclient").replace(":8000", f":{port}") + "\nprint(logits.shape, generation)\n"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout == "(8, 10) 2\n", done.stderr


def test_the_table_of_limits_has_the_options_settings_and_defaults() -> None:
    command = cli.get_command(click.Context(cli), "serve")
    assert command is not None
    options = {name for parameter in command.params for name in parameter.opts}
    rows = re.findall(r"^\| `(--[a-z-]+) \w+` \| (.*?) \| ([\d.]+) \|", PAGE, re.MULTILINE)
    assert len(rows) == 10
    for option, setting, default in rows:
        assert option in options
        if setting != "-":
            assert float(default) == ServeSettings._field_defaults[setting.strip("`").removeprefix("serve.")]


def test_the_defaults_of_settings_and_of_an_application_of_ones_own_agree() -> None:
    settings, limits = ServeSettings(), Limits()
    assert settings.max_body_mib * MIB == limits.max_body_bytes
    assert settings[2:4] == (limits.concurrency, limits.max_queue)
    assert settings[5:7] == (limits.request_timeout_s, limits.read_timeout_s)


def test_the_unit_gives_the_server_time_to_end_and_names_options_that_exist() -> None:
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read(UNIT, encoding="utf-8")
    words = shlex.split(parser["Service"]["ExecStart"])
    assert words[1:3] == ["serve", "%I"]
    timeout = float(words[words.index("--shutdown-timeout") + 1])
    assert timeout < float(parser["Service"]["TimeoutStopSec"])
    command = cli.get_command(click.Context(cli), "serve")
    assert command is not None
    command.make_context("serve", ["lenet@production", *words[3:]])


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze here to check units with")
def test_systemd_understands_the_unit(tmp_path: Path) -> None:
    text = UNIT.read_text(encoding="utf-8").replace("/opt/modelreg/bin/modelreg", "/bin/true")
    (tmp_path / "modelreg-serve@x.service").write_text(text, encoding="utf-8")
    done = subprocess.run(
        ["systemd-analyze", "verify", str(tmp_path / "modelreg-serve@x.service")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert [line for line in done.stderr.splitlines() if "modelreg-serve" in line] == []
