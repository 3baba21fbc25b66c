"""What deploy/ starts is a command that the server takes, with times that fit together."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess

import pytest

from litebert.cli import parse
from litebert.commands.serve import Config
from tests.conftest import REPOSITORY, peer

DEPLOY = REPOSITORY / "deploy"


def config_of(flags: list[str]) -> Config:
    found: Config = parse(Config, "serve", flags)
    return found


def setting(unit: str, name: str) -> str:
    found = re.search(rf"^{name}=(.*)$", unit, re.MULTILINE)
    assert found is not None
    return found[1]


def test_the_unit_starts_the_server_with_a_key_and_a_state() -> None:
    unit = (DEPLOY / "litebert.service").read_text(encoding="utf-8")
    program, command, *flags = shlex.split(setting(unit, "ExecStart"))
    assert (program, command) == ("/opt/litebert/bin/litebert", "serve")
    config = config_of(flags)
    assert config.api_key_file == "${CREDENTIALS_DIRECTORY}/keys"
    assert setting(unit, "LoadCredential").startswith("keys:")
    assert config.state_dir == "${STATE_DIRECTORY}"
    assert config.runs == ""
    assert int(setting(unit, "TimeoutStopSec")) > config.drain_s + config.timeout_s


def test_systemd_finds_nothing_to_complain_of() -> None:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("systemd-analyze is not installed (apt-get install systemd)")
    done = subprocess.run(
        [program, "verify", str(DEPLOY / "litebert.service")], capture_output=True, text=True, check=False
    )
    complaints = [line for line in done.stderr.splitlines() if "is not executable" not in line]  # /opt/litebert/bin
    assert complaints == []


def test_the_container_copies_what_is_there_and_starts_the_server() -> None:
    lines = (DEPLOY / "Containerfile").read_text(encoding="utf-8").splitlines()
    copied = [name for line in lines if line.startswith("COPY") for name in line.split()[1:-1]]
    assert copied
    assert all((REPOSITORY / name).exists() for name in copied)
    entry, flags = (json.loads(next(line for line in lines if line.startswith(word))[len(word) :]) for word in
                    ("ENTRYPOINT", "CMD"))  # fmt: skip
    assert entry == ["litebert", "serve"]
    assert config_of(flags).host == "0.0.0.0"


def test_a_pod_has_time_to_answer_what_it_accepted() -> None:
    yaml = peer("yaml")
    deployment, _, service = yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text(encoding="utf-8"))
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    config = config_of(container["args"])
    assert pod["terminationGracePeriodSeconds"] > config.drain_s + config.timeout_s
    assert config.drain_s > 2 * container["readinessProbe"]["periodSeconds"]
    assert config.state_dir in [mount["mountPath"] for mount in container["volumeMounts"]]
    assert container["ports"] == [{"name": service["spec"]["ports"][0]["targetPort"], "containerPort": config.port}]


def test_nginx_waits_longer_than_a_server_works_and_takes_larger_bodies() -> None:
    text, config = (DEPLOY / "nginx.conf").read_text(encoding="utf-8"), Config()
    seconds, megabytes = (re.search(rf"{name} (\d+)", text) for name in ("proxy_read_timeout", "client_max_body_size"))
    assert seconds is not None
    assert megabytes is not None
    assert int(seconds[1]) > config.job_timeout_s
    assert int(megabytes[1]) > config.max_body_mb
