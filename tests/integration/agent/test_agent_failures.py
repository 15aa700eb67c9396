"""Whatever happens to the agent or the broker, training goes on; what the agent held comes out afterwards."""

from __future__ import annotations

import os
import resource
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from agent_kit import JobServer, RunningAgent, RunningJob, Topics, ask, begin, under_way, until

from eroica.bus import ensure_topics
from eroica.bus.local import EmbeddedBroker
from eroica.producers.hook.wire import RING_HEADER_BYTES
from eroica.schemas.iterations import IterationBatch
from eroica.schemas.settings import KafkaSettings
from eroica.schemas.summaries import Summary, SummaryError

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]
Running = list[RunningAgent | RunningJob | Topics]


@pytest.fixture
def own_broker(tansu: EmbeddedBroker) -> Iterator[EmbeddedBroker]:
    """A broker that the test may stop; *tansu* says whether there is one at all."""
    with EmbeddedBroker() as broker:
        yield broker


def test_training_does_not_notice_what_happens_to_agent_and_broker(
    own_broker: EmbeddedBroker, jobs: JobServer, tmp_path: Path, prefix: str, running: Running
) -> None:
    settings = KafkaSettings(bootstrap=own_broker.bootstrap, connect_timeout_ms=30_000, prefix=prefix)
    ensure_topics(settings)
    topics = Topics(settings)
    running.append(topics)
    agent, job, first = begin(settings, topics, jobs, tmp_path, running, "job-f", step_s=0.02)

    # The agent is killed: the next one in its place hears of the running processes by their own hellos.
    agent.kill()
    agent = RunningAgent(tmp_path / "run", settings)
    running.append(agent)
    agent.wait_listening()
    before = topics.last_step("job-f")
    until(lambda: topics.last_step("job-f") > before + 20, 100, "iterations go on after the agent was killed", agent)
    assert topics.announcements("job-f")[-1].run_id == first.run_id
    assert topics.announcements("job-f")[-1].started_at_us == first.started_at_us

    # The agent stands still, so its socket fills up.
    agent.signal(signal.SIGSTOP)
    time.sleep(3)  # what is tested: that nobody waits for it
    agent.signal(signal.SIGCONT)
    before = topics.last_step("job-f")
    until(lambda: topics.last_step("job-f") > before + 20, 100, "iterations go on after the agent stood still", agent)

    # The broker does not answer for a while: what happened meanwhile comes afterwards, with its own times.
    os.kill(own_broker.pid, signal.SIGSTOP)
    stopped_us = time.time_ns() // 1_000
    held = len(spooled(tmp_path))
    until(lambda: spooled(tmp_path)[held:].count(b'"sent_at_us"') >= 12, 100, "messages of the outage are on disk", agent)
    back_us = time.time_ns() // 1_000
    os.kill(own_broker.pid, signal.SIGCONT)
    before = topics.last_step("job-f")
    until(lambda: topics.last_step("job-f") > before + 100, 100, "iterations go on after the broker was away", agent)
    sent = [m.sent_at_us for m in topics.messages("iterations") if isinstance(m, IterationBatch)]
    assert sum(stopped_us < at < back_us for at in sent) >= 10, "batches of the outage are missing"
    steps = topics.steps_of("job-f")[0]
    assert steps == sorted(set(steps)), "reordered or repeated"
    tail = [step for step in steps if step > before - 50]
    assert tail == list(range(tail[0], tail[0] + len(tail))), "steps of the outage are missing"

    # The broker is removed for good, then the agent ends: in bounded time, in an orderly way, and what is left stays on disk.
    topics.end()
    own_broker.stop()
    held = len(spooled(tmp_path))
    until(lambda: len(spooled(tmp_path)) > held, 100, "something is left", agent)
    assert agent.stop() == 0, agent.text()
    assert "stay on disk" in agent.text()
    job.finish()
    assert "Traceback" not in agent.text()


def test_the_messages_of_an_agent_that_was_killed_come_from_its_successor(
    own_broker: EmbeddedBroker, jobs: JobServer, tmp_path: Path, prefix: str, running: Running
) -> None:
    settings = KafkaSettings(bootstrap=own_broker.bootstrap, connect_timeout_ms=30_000, prefix=prefix)
    ensure_topics(settings)
    os.kill(own_broker.pid, signal.SIGSTOP)
    agent = RunningAgent(tmp_path / "run", settings)
    running.append(agent)
    agent.wait_listening()
    job = RunningJob(jobs, tmp_path / "run", "job-k", steps=100, step_s=0.01)
    running.append(job)
    job.finish()
    until(lambda: b"optimizer_exit" in spooled(tmp_path) or b"goodbye" in spooled(tmp_path), 100, "it is on disk", agent)
    until(lambda: spooled(tmp_path).count(b'"ended":true') >= 2, 100, "both ranks' ends are on disk", agent)
    agent.kill()
    os.kill(own_broker.pid, signal.SIGCONT)
    topics = Topics(settings)
    running.append(topics)
    agent = RunningAgent(tmp_path / "run", settings)
    running.append(agent)
    until(lambda: topics.last_step("job-k") >= 98, 100, "the iterations of the killed agent's time", agent)
    assert agent.stop() == 0
    topics.end()


def test_a_disk_that_is_full_keeps_nothing_from_the_broker(
    settings: KafkaSettings, topics: Topics, jobs: JobServer, tmp_path: Path, running: Running
) -> None:
    agent, job, announced = begin(settings, topics, jobs, tmp_path, running, "job-d", step_s=0.02)
    before = resource.prlimit(agent.process.pid, resource.RLIMIT_FSIZE)
    # No file of the agent's grows beyond the heads of rings, its log neither.
    resource.prlimit(agent.process.pid, resource.RLIMIT_FSIZE, (RING_HEADER_BYTES, before[1]))
    mark = topics.last_step("job-d")
    until(lambda: topics.last_step("job-d") > mark + 100, 100, "iterations go on with a full disk")
    ask(settings, announced, mode="stacks", steps=0, reason="blocked")
    until(lambda: len(topics.messages("summaries")) == 2, 100, "what the agent says to a request")
    resource.prlimit(agent.process.pid, resource.RLIMIT_FSIZE, before)
    until(lambda: "the disk takes messages again; 0 have been given up" in agent.text(), 100, "its end is said", agent)
    job.finish()
    assert agent.stop() == 0, agent.text()
    steps = topics.steps_of("job-d")[0]
    seen = [step for step in steps if step >= mark]
    assert seen == list(range(seen[0], seen[0] + len(seen))), "lost, reordered or repeated"
    assert "Traceback" not in agent.text()


def spooled(folder: Path) -> bytes:
    found = []
    for path in sorted((folder / "run" / "spool").glob("*.seg")):
        with suppress(FileNotFoundError):  # what was delivered is deleted
            found.append(path.read_bytes())
    return b"".join(found)


def test_the_later_of_two_jobs_with_one_name_is_refused_in_one_sentence(
    settings: KafkaSettings, topics: Topics, jobs: JobServer, tmp_path: Path, running: Running
) -> None:
    quick = "agent.announce_interval_ms=1000"
    one = RunningAgent(tmp_path / "one", settings, quick, host="host-a")
    two = RunningAgent(tmp_path / "two", settings, quick, host="host-b")
    running += [one, two]
    one.wait_listening()
    two.wait_listening()
    first = RunningJob(jobs, tmp_path / "one", "twin", steps=60, step_s=0.01, leash=30)
    running.append(first)
    older = topics.whole("twin", one)
    second = RunningJob(jobs, tmp_path / "two", "twin", steps=60, step_s=0.01, leash=30)
    running.append(second)
    until(lambda: "two launches are alive under one name" in two.text(), 100, "the later one is refused", two)
    line = next(line for line in two.text().splitlines() if "two launches" in line)
    assert older.run_id in line and "host-a" in line and "EROICA_JOB" in line
    assert {a.run_id for a in topics.announcements("twin")} == {older.run_id}
    assert "two launches" not in one.text()
    first.finish()
    second.finish()
    assert [one.stop(), two.stop()] == [0, 0]


def test_the_successor_of_a_killed_agent_goes_on_with_the_profiles_under_way(
    settings: KafkaSettings, topics: Topics, jobs: JobServer, tmp_path: Path, running: Running
) -> None:
    hold = 60
    agent, job, announced = begin(settings, topics, jobs, tmp_path, running, "job-m", step_s=0.02, leash=hold)

    def traces() -> list[Path]:
        return sorted(tmp_path.glob("eroica-traces-*/*/rank?.json"))

    for moment in ("profiling", "written"):
        until(lambda: topics.last_step("job-m") >= hold - 2, 100, "the job stands still", agent)  # noqa: B023 - called at once
        request = ask(settings, announced, steps=60, start_step=hold + 10)
        under_way(agent, topics, request)
        job.allow(hold + 40)
        until(lambda: topics.last_step("job-m") >= hold + 38, 100, "half of the profile", agent)  # noqa: B023
        if moment == "written":
            # It cannot hear what the hooks say, and takes it to the grave.
            agent.signal(signal.SIGSTOP)
        else:
            agent.kill()
        hold += 120
        job.allow(hold)
        if moment == "written":
            until(lambda: len(traces()) == 2, 100, "the traces are written")
            agent.kill()
        agent = RunningAgent(tmp_path / "run", settings)
        running.append(agent)

        def heard() -> bool:
            """Step by step, for the hooks look at commands between two steps."""
            nonlocal hold
            hold += 1
            job.allow(hold)
            return len(answers(topics, request.request)) >= 2  # noqa: B023

        until(heard, 100, "both ranks are heard", agent)
        until(lambda: not traces(), 100, "the traces are deleted", agent)
    job.allow()

    # One more, undisturbed: by then nothing of the others comes any more.
    last = ask(settings, announced, steps=2)
    until(lambda: len(answers(topics, last.request)) == 2, 100, "an undisturbed profile", agent)
    found = [m for m in topics.messages("summaries") if isinstance(m, Summary | SummaryError)]
    assert [m for m in found if isinstance(m, SummaryError)] == []
    assert sorted(m.who.rank for m in found) == [0, 0, 0, 1, 1, 1], "each rank once a request"
    assert [m.late_by_steps for m in found if isinstance(m, Summary) and m.who.request != last.request] == [0] * 4
    assert agent.stop() == 0
    assert list(tmp_path.glob("eroica-traces-*")) == []

    # The next one reads the requests again; nobody is asked once more.
    agent = RunningAgent(tmp_path / "run", settings)
    running.append(agent)
    more = ask(settings, announced, steps=2)
    until(lambda: len(answers(topics, more.request)) == 2, 100, "another profile", agent)
    assert len([m for m in topics.messages("summaries") if isinstance(m, Summary | SummaryError)]) == 8


def answers(topics: Topics, request: str) -> list[Summary | SummaryError]:
    return [m for m in topics.messages("summaries") if isinstance(m, Summary | SummaryError) and m.who.request == request]
