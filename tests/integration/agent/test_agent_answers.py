"""Every rank that was asked is heard exactly once, whatever its process does (the process is played by the test)."""

from __future__ import annotations

import json
import queue
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from eroica.producers.agent.announce import Announcer
from eroica.producers.agent.answers import Answers
from eroica.producers.agent.counters import Counters
from eroica.producers.agent.hello import parse_hello
from eroica.producers.agent.hoststate import HostState
from eroica.producers.agent.profiles import LARGE_TRACE_BYTES, Profiled
from eroica.producers.agent.server import DatagramServer
from eroica.producers.hook.sender import Sender
from eroica.producers.hook.wire import GOODBYE, WIRE_VERSION, Event
from eroica.schemas.codec import decode
from eroica.schemas.control import ProfileRequest
from eroica.schemas.settings import AgentSettings
from eroica.schemas.summaries import StackEvidence, Summary, SummaryError

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]
NOW_US = 1_800_000_000_000_000
PID = 4_000_001
MONO_NS = 10**9
LATER_US = NOW_US + 10**10


class Stage:
    """Answers on a real socket and real summarisers; the process is ``peer``."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.counters = Counters()
        self.state = HostState("h", 1_024, self.counters)
        self.server = DatagramServer(folder, lambda _: None)
        self.inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.sent: list[tuple[str, str, object, str]] = []
        self.traces = folder / "traces"
        self.traces.mkdir()
        self.answers = Answers(
            AgentSettings(trace_directory=str(self.traces), **settings), "h", self.state, Announcer("h", 10**7), self.server,
            self.counters, self.inbox.put, lambda t, k, raw, kind, _: self.sent.append((t, k, decode(t, raw), kind)),
        )  # fmt: skip
        self.peer = Sender(PID, folder)
        self.peer.message({}, 10**10)
        hello = {"v": WIRE_VERSION, "pid": PID, "rank": 1, "world_size": 2, "job": "j", "run_id": "r"}
        self.state.hello(parse_hello(hello), NOW_US, 0)

    def ask(self, **fields: Any) -> None:
        values: dict[str, Any] = {
            "request": "req", "job": "j", "run_id": "r", "reason": "manual", "steps": 2, "world_size": 2,
            "classes": {"all": "0-1"}, "issued_at_us": NOW_US, "deadline_ms": 60_000, **fields,
        }  # fmt: skip
        self.answers.request(ProfileRequest(**values), NOW_US, MONO_NS)
        self.answers.tick(NOW_US, MONO_NS)

    def command(self) -> dict[str, Any]:
        found = self.peer.receive()
        assert found is not None
        return found

    def until_sent(self, timeout_s: float = 120) -> None:
        deadline = time.monotonic() + timeout_s
        while not self.sent:
            self.inbox.get(timeout=max(0.0, deadline - time.monotonic()))()

    def only_error(self) -> str:
        assert len(self.sent) == 1, self.sent
        topic, key, message, kind = self.sent[0]
        assert (topic, key, kind) == ("summaries", "j/req/all", "summary_error")
        assert isinstance(message, SummaryError)
        assert (message.who.rank, message.who.pid, message.who.host, message.who.cls) == (1, PID, "h", "all")
        return message.error


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path)
    yield made
    made.answers.close(LATER_US)
    made.server.close()
    made.peer.close()
    assert list(made.traces.iterdir()) == []


def test_a_trace_that_is_none_is_an_error_of_its_rank_and_is_deleted(stage: Stage) -> None:
    stage.ask()
    command = stage.command()
    assert (command["kind"], command["steps"]) == ("profile", 2)
    trace = Path(command["directory"]) / "rank1.json"
    trace.write_text("{broken", encoding="utf-8")
    trace.with_suffix(".side.json").write_text("{}", encoding="utf-8")
    answer = Profiled(pid=PID, request="req", path=str(trace), ended_wall_ns=NOW_US * 1_000)
    stage.answers.profiled(answer, NOW_US)
    assert stage.answers.summarising
    stage.until_sent()
    assert stage.only_error()
    assert not stage.answers.summarising
    assert not trace.parent.exists()
    stage.answers.profiled(answer, NOW_US)
    stage.answers.tick(LATER_US, MONO_NS)
    assert len(stage.sent) == 1, "once"


def test_a_folder_stays_while_a_hook_may_still_write_there(stage: Stage) -> None:
    other = {"v": WIRE_VERSION, "pid": PID + 1, "rank": 0, "world_size": 2, "job": "j", "run_id": "r"}
    stage.state.hello(parse_hello(other), NOW_US, 0)
    stage.ask()
    folder = Path(stage.command()["directory"])
    stage.answers.profiled(Profiled(pid=PID, request="req", error="no"), NOW_US)
    assert folder.is_dir(), "the other rank has not answered"
    stage.answers.tick(NOW_US + 70_000_000, MONO_NS)
    assert len(stage.sent) == 2, "the other rank was given up, and may write yet"
    stage.answers.tidy()
    assert folder.is_dir()
    stage.answers.tick(LATER_US, MONO_NS)
    stage.answers.tidy()
    assert not folder.exists()


def test_a_summariser_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    stage = Stage(tmp_path, summary_timeout_ms=1)
    stage.ask()
    trace = Path(stage.command()["directory"]) / "rank1.json"
    trace.write_text('{"traceEvents": [' + ",".join(['{"ph":"X","name":"a","ts":1,"dur":1,"pid":1,"tid":1}'] * 200_000) + "]}")
    stage.answers.profiled(Profiled(pid=PID, request="req", path=str(trace)), NOW_US)
    stage.until_sent()
    assert "within 1 ms" in stage.only_error()
    stage.answers.close(LATER_US)
    stage.server.close()
    stage.peer.close()


def test_a_large_trace_that_gives_no_summary_is_taken_again_without_stacks(stage: Stage) -> None:
    stage.ask()
    trace = Path(stage.command()["directory"]) / "rank1.json"
    with trace.open("wb") as file:
        file.write(b"{broken")
        file.truncate(LARGE_TRACE_BYTES)
    stage.answers.profiled(Profiled(pid=PID, request="req", path=str(trace)), NOW_US)
    stage.inbox.get(timeout=120)()
    assert stage.sent == []
    assert not trace.exists()
    stage.answers.tick(NOW_US + 1, MONO_NS)
    command = stage.command()
    assert (command["with_stack"], command["attempt"], command["request"]) == (False, 2, "req")
    events = [
        {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{n}", "ts": n * 1_000, "dur": 1_000, "pid": 1, "tid": 1}
        for n in (5, 6)
    ]
    events += [{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 5_100, "dur": 1_500, "pid": 1, "tid": 1}]
    trace.write_text(json.dumps({"traceEvents": events}), encoding="utf-8")
    stage.answers.profiled(Profiled(pid=PID, request="req", path=str(trace), attempt=2, notes=("and more",)), NOW_US)
    stage.until_sent()
    ((_, _, summary, _),) = stage.sent
    assert isinstance(summary, Summary), summary
    assert any("without stacks" in note for note in summary.notes)
    assert "and more" in summary.notes
    assert stage.counters["profiles_repeated"] == 1


def test_what_the_process_says_against_a_profile_is_passed_on(stage: Stage) -> None:
    stage.ask()
    stage.answers.profiled(Profiled(pid=PID, request="req", error="the program's own torch.profiler is running"), NOW_US)
    assert "own torch.profiler" in stage.only_error()


def test_a_path_outside_of_the_folder_is_not_read(stage: Stage, tmp_path: Path) -> None:
    stage.ask()
    secret = tmp_path / "rank1.json"
    secret.write_text("{}", encoding="utf-8")
    stage.answers.profiled(Profiled(pid=PID, request="req", path=str(secret)), NOW_US)
    assert "outside" in stage.only_error()
    assert secret.exists()


def test_a_rank_that_never_answers_is_given_up_and_its_late_trace_is_deleted(stage: Stage) -> None:
    stage.ask()
    stage.answers.tick(NOW_US + 5_000_000, MONO_NS)
    assert stage.sent == []
    stage.answers.tick(LATER_US, MONO_NS)
    assert "did not profile in time" in stage.only_error()
    assert stage.counters["profiles_unanswered"] == 1
    trace = Path(stage.command()["directory"]) / "rank1.json"
    trace.write_text("{}", encoding="utf-8")
    stage.answers.profiled(Profiled(pid=PID, request="req", path=str(trace)), LATER_US)
    assert not trace.exists()
    assert stage.counters["profiles_unasked"] == 1
    assert len(stage.sent) == 1


def test_a_command_waits_for_a_socket_that_is_full(stage: Stage) -> None:
    while stage.server.command(PID, {"filler": 1}):
        pass
    stage.ask()
    assert stage.answers._profiles.unsent()
    while stage.command() == {"filler": 1} and stage.answers._profiles.unsent():
        stage.answers.tick(NOW_US + 1, MONO_NS)
    assert not stage.answers._profiles.unsent()


def test_a_process_that_ended_is_heard_at_once(stage: Stage) -> None:
    stage.state.event(Event(GOODBYE, PID, 3, 1, 1, 0))
    stage.ask()
    assert "has ended" in stage.only_error()


def test_a_process_that_dies_under_way_is_heard_soon(stage: Stage) -> None:
    stage.ask()
    stage.state.gone(PID)
    stage.answers.tick(NOW_US + 1, MONO_NS)
    stage.answers.tick(NOW_US + 6_000_000, MONO_NS)
    assert "went away" in stage.only_error()


def test_an_agent_that_stops_says_so_for_every_rank(stage: Stage) -> None:
    stage.ask()
    stage.answers.close(NOW_US)
    assert "agent was stopped" in stage.only_error()


@pytest.mark.parametrize("fields", [{"job": "other"}, {"run_id": "older"}, {"classes": {"all": "0"}}])
def test_a_request_of_others_is_none_of_ours(stage: Stage, fields: dict[str, Any]) -> None:
    stage.ask(**fields)
    assert stage.peer.receive() is None
    stage.answers.tick(LATER_US, MONO_NS)
    assert stage.sent == []


def test_stacks_of_a_process_that_is_gone_say_where_it_stopped(stage: Stage) -> None:
    stage.state.gone(PID)
    stage.ask(mode="stacks", steps=0, reason="blocked")
    ((_, _, evidence, kind),) = stage.sent
    assert isinstance(evidence, StackEvidence)
    assert (kind, evidence.last_event, evidence.threads) == ("stacks", "process_gone", [])
    assert "gone" in evidence.error
    assert evidence.idle_us == 10**6
