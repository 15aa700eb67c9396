"""The compose file and the Dockerfile, without a container engine.

The specification's schema, the wiring, and every service's command run as a process against Apache Kafka in an environment
without PyTorch, as in the image.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from jsonschema import Draft202012Validator

from eroica.bus import list_topics
from eroica.bus.local import KafkaCluster
from eroica.bus.local.jars import ensure_jars, find_java, kafka_version
from eroica.schemas.errors import MissingDependency
from eroica.schemas.settings import KafkaSettings
from eroica.schemas.topics import TOPICS

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

ROOT = Path(__file__).resolve().parents[3]
COMPOSE = ROOT / "docker-compose.yml"
INTERNAL = "kafka:19092"
OURS = ("topics", "detect", "group", "localizer", "demo")
LONG_RUNNING = ("detect", "group", "localizer")
JOIN_TIMEOUT_S = 200.0


@pytest.fixture(scope="module")
def services() -> dict[str, dict[str, Any]]:
    return dict(yaml.safe_load(COMPOSE.read_text("utf-8"))["services"])


@pytest.fixture(scope="module")
def specification() -> Draft202012Validator:
    """The Compose specification's JSON Schema, as check-jsonschema carries it."""
    # Found through the metadata: importing the package would import its command line, which wants a newer click than Faust.
    carrier = metadata.distribution("check-jsonschema")
    schema = Path(str(carrier.locate_file("check_jsonschema/builtin_schemas/vendor/compose-spec.json")))
    return Draft202012Validator(json.loads(schema.read_text("utf-8")))


def test_the_file_follows_the_compose_specification(specification: Draft202012Validator) -> None:
    assert [error.message for error in specification.iter_errors(yaml.safe_load(COMPOSE.read_text("utf-8")))] == []


def test_the_schema_check_can_fail(specification: Draft202012Validator) -> None:
    wrong = COMPOSE.read_text("utf-8").replace("stop_grace_period", "stop_grace_perod")
    assert any("stop_grace_perod" in error.message for error in specification.iter_errors(yaml.safe_load(wrong)))


def test_services_wait_for_the_topics_and_the_topics_for_a_healthy_broker(services: dict[str, dict[str, Any]]) -> None:
    assert set(services) == {"kafka", *OURS}
    assert "healthcheck" in services["kafka"]
    for name in OURS:
        conditions = {other: wish["condition"] for other, wish in services[name]["depends_on"].items()}
        expected = {"kafka": "service_healthy"} | ({} if name == "topics" else {"topics": "service_completed_successfully"})
        assert conditions == expected, name


def test_our_services_run_without_rights_and_have_time_to_end(services: dict[str, dict[str, Any]]) -> None:
    for name in OURS:
        service = services[name]
        assert service["user"] == "10001:10001", name
        assert service["cap_drop"] == ["ALL"], name
        assert service["read_only"] is True, name
        assert seconds(service["stop_grace_period"]) >= 30, name
        assert service["environment"]["EROICA_KAFKA__BOOTSTRAP"] == INTERNAL, name
    assert services["demo"]["profiles"] == ["demo"]
    assert [services[name].get("deploy", {}).get("replicas", 1) for name in LONG_RUNNING] == [2, 2, 1]


def test_the_image_is_the_kafka_of_the_tests(services: dict[str, dict[str, Any]]) -> None:
    assert services["kafka"]["image"] == f"apache/kafka:{kafka_version()}"


def test_kafka_accepts_the_configuration(services: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    """The image turns ``KAFKA_A_B`` into ``a.b``; Kafka's own storage tool reads and checks the result."""
    try:
        java, jars = find_java(), ensure_jars()
    except MissingDependency as error:
        if os.environ.get("EROICA_REQUIRE_KAFKA") == "1":
            raise
        pytest.skip(str(error))
    environment = services["kafka"]["environment"] | {"KAFKA_LOG_DIRS": str(tmp_path / "data")}
    lines = [f"{name.removeprefix('KAFKA_').lower().replace('_', '.')}={value}" for name, value in environment.items()]
    properties = tmp_path / "server.properties"
    properties.write_text("\n".join(lines) + "\n", encoding="utf-8")
    format_ = [
        java,
        "-cp",
        f"{jars}/*",
        "kafka.tools.StorageTool",
        "format",
        "-t",
        "4L6g3nShT-eMCtK--X86sw",
        "-c",
        str(properties),
    ]
    done = subprocess.run(format_, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_image_has_every_package_and_no_torch_for_the_services() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text("utf-8")
    allowed = (ROOT / ".dockerignore").read_text("utf-8")
    for folder in set(re.findall(r'^"eroica[a-z.]*" = "([a-z]+)"$', (ROOT / "pyproject.toml").read_text("utf-8"), re.MULTILINE)):
        assert f"COPY {folder} {folder}\n" in dockerfile
        assert f"!{folder}\n" in allowed
    build = dockerfile.partition("AS services-build")[2].partition("FROM ")[0]
    assert "'.[streams,agent]'" in build
    last_user = re.findall(r"^USER (.+)$", dockerfile, re.MULTILINE)[-1]
    assert last_user == "10001:10001"


@pytest.fixture
def image_environment(kafka: KafkaCluster, prefix: str, tmp_path: Path) -> dict[str, str]:
    """What a service finds in its container, except that the broker is ours and PyTorch is made impossible to import."""
    (tmp_path / "torch.py").write_text("raise ImportError('the service image has no torch')\n", encoding="utf-8")
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "TMPDIR": str(tmp_path),
        "PYTHONPATH": str(tmp_path),
        "EROICA_KAFKA__PREFIX": prefix,
        "EROICA_KAFKA__BOOTSTRAP": kafka.bootstrap,
        "EROICA_KAFKA__CONNECT_TIMEOUT_MS": "30000",
    }


@pytest.fixture
def processes() -> Iterator[list[subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for process in started:
        if process.poll() is None:
            process.kill()
            process.wait(100)


def test_the_command_of_every_service_works_on_apache_kafka(
    services: dict[str, dict[str, Any]],
    kafka: KafkaCluster,
    prefix: str,
    image_environment: dict[str, str],
    processes: list[subprocess.Popen[bytes]],
    tmp_path: Path,
) -> None:
    topics = subprocess.run(
        command(services["topics"], kafka), env=image_environment, capture_output=True, timeout=300, check=False
    )
    assert topics.returncode == 0, topics.stderr.decode()
    settings = KafkaSettings(bootstrap=kafka.bootstrap, connect_timeout_ms=30_000, prefix=prefix)
    assert len(list_topics(settings)) == 2 * len(TOPICS)

    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    before = groups(admin)
    wanted = 0
    for name in LONG_RUNNING:
        for replica in range(services[name].get("deploy", {}).get("replicas", 1)):
            with (tmp_path / f"{name}-{replica}.log").open("wb") as log:
                processes.append(subprocess.Popen(command(services[name], kafka), env=image_environment, stdout=log, stderr=log))
            wanted += 1
    deadline = time.monotonic() + JOIN_TIMEOUT_S
    while members(admin, groups(admin) - before) < wanted:
        ended = [process.args for process in processes if process.poll() is not None]
        assert not ended, (ended, logs(tmp_path))
        assert time.monotonic() < deadline, f"the services did not all join a consumer group: {logs(tmp_path)}"
        time.sleep(0.5)

    for process in processes:
        process.send_signal(signal.SIGTERM)
    for process in processes:
        assert process.wait(200) == 0, (process.args, logs(tmp_path))


def test_the_demo_job_runs_on_apache_kafka(
    services: dict[str, dict[str, Any]], kafka: KafkaCluster, image_environment: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "torch.py").unlink()  # this image has PyTorch
    done = subprocess.run(command(services["demo"], kafka), env=image_environment, capture_output=True, timeout=850, check=False)
    assert done.returncode == 0, done.stdout.decode()[-3000:] + done.stderr.decode()[-3000:]


def command(service: dict[str, Any], kafka: KafkaCluster) -> list[str]:
    """The image's entry point with the service's command, the broker's address replaced."""
    return [
        str(Path(sys.executable).parent / "eroica"),
        *(part.replace(INTERNAL, kafka.bootstrap) for part in service["command"]),
    ]


def groups(admin: AdminClient) -> set[str]:
    return {group.group_id for group in admin.list_consumer_groups(request_timeout=60).result(60).valid}


def members(admin: AdminClient, names: set[str]) -> int:
    described = admin.describe_consumer_groups(sorted(names), request_timeout=60) if names else {}
    count = 0
    for future in described.values():
        with contextlib.suppress(KafkaException):  # its coordinator is only being found
            count += len(future.result(100).members)
    return count


def seconds(text: str) -> int:
    found = re.fullmatch(r"(\d+)s", text)
    assert found is not None, text
    return int(found.group(1))


def logs(folder: Path) -> str:
    return "\n".join(f"{path.name}: {path.read_text('utf-8', 'replace')[-1500:]}" for path in sorted(folder.glob("*.log")))
