"""Commands against a real broker: what a person types on a fresh installation, and what goes wrong there."""

from __future__ import annotations

import json
import socket
import threading
from contextlib import ExitStack
from typing import Any

import msgspec
import pytest

from eroica.bus import BusProducer, GroupConsumer, ensure_topics
from eroica.cli.main import main
from eroica.schemas.codec import encode
from eroica.schemas.jobs import JobAnnouncement, RankInfo
from eroica.schemas.settings import KafkaSettings
from eroica.schemas.verdicts import Coverage, Provenance, RequestRef, Verdict

pytestmark = pytest.mark.integration


def options(broker: Any, prefix: str) -> list[str]:
    return ["--bootstrap", broker.bootstrap, "--prefix", prefix]


def verdict(number: int, status: str = "culprit_found", job: str = "j") -> bytes:
    made = Verdict(
        verdict_id=f"v{number}",
        job=job,
        request=RequestRef(id=f"r{number}", reason="manual", steps=(1, 2)),
        status=status,  # type: ignore[arg-type]  # given as in the table of statuses
        headline=f"verdict number {number}",
        event_time="2026-01-01T00:00:00Z",
        coverage=Coverage(expected=1, received=1),
        provenance=Provenance(settings_digest="d", software="0", rules="eroica"),
    )
    return encode(made)


def put(settings: KafkaSettings, topic: str, *messages: tuple[str, bytes]) -> None:
    with BusProducer(settings) as producer:
        for key, value in messages:
            producer.send(topic, key=key, value=value)
        assert producer.flush(100) == 0


def test_topics_are_made_listed_and_deleted(broker: Any, prefix: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = options(broker, prefix)
    assert main(["topics", "ensure", "--dry-run", "--json", *words]) == 0
    wished = json.loads(capsys.readouterr().out)
    assert {change["action"] for change in wished} == {"create"}
    assert main(["topics", "ensure", *words]) == 0
    assert main(["topics", "ensure", *words]) == 0
    assert "as they should be" in capsys.readouterr().out
    assert main(["topics", "list", "--json", *words]) == 0
    assert len(json.loads(capsys.readouterr().out)) == len(wished)
    assert main(["doctor", "--json", *words]) in (0, 1)
    levels = {check["name"]: check["level"] for check in json.loads(capsys.readouterr().out)}
    assert (levels["broker"], levels["topics"]) == ("ok", "ok")
    assert main(["topics", "delete", "--yes", "--json", *words]) == 0
    assert len(json.loads(capsys.readouterr().out)) == len(wished)


@pytest.mark.parametrize("argv", [["verdicts"], ["profile", "j"], ["record", "--job", "j"], ["detect"], ["group"], ["localize"]])
def test_missing_topics_are_one_sentence(
    tansu: Any, prefix: str, argv: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Any
) -> None:
    out = ["--out", str(tmp_path / "rec")] if argv[0] == "record" else []
    assert main([*argv, *out, *options(tansu, prefix)]) == 4
    shown = capsys.readouterr().err
    assert "eroica topics ensure" in shown
    assert "Traceback" not in shown


def test_verdicts_for_programs_and_people(broker: Any, prefix: str, capsys: pytest.CaptureFixture[str]) -> None:
    settings = KafkaSettings(bootstrap=broker.bootstrap, connect_timeout_ms=30_000, prefix=prefix)
    ensure_topics(settings)
    words = options(broker, prefix)
    assert main(["verdicts", *words]) == 0
    assert "no verdicts yet" in capsys.readouterr().err
    put(settings, "verdicts", ("j", verdict(1)), ("j", verdict(1)), ("j", b"\xff"), ("k", verdict(2, "no_fault_found", "k")))
    assert main(["verdicts", "--json", *words]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert sorted(lines) == sorted([verdict(1).decode(), verdict(2, "no_fault_found", "k").decode()])
    assert main(["verdicts", "--short", "--last", "1", *words]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1
    assert main(["verdicts", "--short", "--json", *words]) == 2
    assert "give one of --json and --short" in capsys.readouterr().err
    assert main(["verdicts", "--job", "k", "--fail-on-finding", *words]) == 0
    page = capsys.readouterr().out
    assert "verdict number 2" in page
    assert "verdict number 1" not in page
    assert main(["verdicts", "--fail-on-finding", *words]) == 1
    assert main(["verdicts", "--follow", "--fail-on-finding", *words]) == 1


def test_a_profile_by_hand_reaches_the_control_topic(tansu: Any, prefix: str, capsys: pytest.CaptureFixture[str]) -> None:
    settings = KafkaSettings(bootstrap=tansu.bootstrap, connect_timeout_ms=30_000, prefix=prefix)
    ensure_topics(settings)
    words = options(tansu, prefix)
    assert main(["profile", "j", *words]) == 2
    assert "no job of this name" in capsys.readouterr().err
    host = JobAnnouncement(
        job="j", run_id="1", host="a", world_size=2, ranks=[RankInfo(rank=0), RankInfo(rank=1)], started_at_us=1
    )
    put(settings, "jobs", ("j/a", encode(host)))
    assert main(["profile", "nobody", *words]) == 2
    assert "there are: j" in capsys.readouterr().err
    assert main(["profile", "j", "--steps", "3", "--json", *words]) == 0
    shown = capsys.readouterr()
    request = json.loads(shown.out)
    assert (request["job"], request["steps"], request["reason"], request["classes"]) == ("j", 3, "manual", {"all": "0-1"})
    assert "its progress is unknown" in shown.err
    assert "warning" not in shown.err
    put(settings, "jobs", ("j/a", encode(msgspec.structs.replace(host, announced_at_us=1))))
    assert main(["profile", "j", "--steps", "3", *words]) == 0
    assert "1 of 1 host (a) last announced the job" in " ".join(capsys.readouterr().err.split())
    put(settings, "jobs", ("j/a", encode(msgspec.structs.replace(host, announced_at_us=2, ended=True))))
    assert main(["profile", "j", "--steps", "3", *words]) == 2
    assert "the job has ended" in capsys.readouterr().err
    put(settings, "jobs", ("j/a", encode(msgspec.structs.replace(host, announced_at_us=3))))

    answer = threading.Thread(target=lambda: put(settings, "verdicts", ("j", verdict(7))))
    answer.start()
    assert main(["profile", "j", "--wait", "--timeout", "2", *words]) == 3
    answer.join()
    assert "no verdict came" in capsys.readouterr().err


def test_the_doctor_sees_which_services_run(broker: Any, prefix: str, capsys: pytest.CaptureFixture[str]) -> None:
    settings = KafkaSettings(bootstrap=broker.bootstrap, connect_timeout_ms=30_000, prefix=prefix)
    ensure_topics(settings)

    def services() -> dict[str, str]:
        assert main(["doctor", "--json", *options(broker, prefix)]) in (0, 1)
        (found,) = [check for check in json.loads(capsys.readouterr().out) if check["name"] == "services"]
        return dict(found)

    nobody = services()
    assert nobody["level"] == "hint"
    assert all(f"eroica {service}" in nobody["do"] for service in ("detect", "group", "localize"))
    with ExitStack() as members:
        join(settings, "localize", "groups", members)
        some = services()
        assert (some["level"], some["do"].count("eroica ")) == ("hint", 2)
        assert "no detect and no group" in some["found"] and "localize runs" in some["found"]
        join(settings, "detect", "iterations", members)
        join(settings, "group", "summaries", members)
        assert services()["level"] == "ok"
        put(settings, "partials", ("j", b"{}"))
        assert "; detect last spoke " in services()["found"]
    assert services() == nobody


def join(settings: KafkaSettings, group: str, topic: str, members: ExitStack) -> None:
    """A member of *group*, until *members* closes, that has its share of the partitions."""
    member = GroupConsumer(settings, group, [topic])
    members.callback(member.close)
    for _ in member.batches(poll_s=0.1):
        if member.assigned:
            return


def test_a_taken_port_is_said(tansu: Any) -> None:
    from eroica.bus.local import EmbeddedBroker
    from eroica.schemas.errors import UsageError

    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(UsageError, match="taken"):
        EmbeddedBroker(taken.getsockname()[1]).start()
