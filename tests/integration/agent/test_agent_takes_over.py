"""An agent that takes the place of a killed one knows what that one knew, also of processes that say nothing."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from agent_kit import JobServer, RunningAgent, RunningJob, Topics, ask, begin, until

from eroica.schemas.settings import KafkaSettings
from eroica.schemas.summaries import StackEvidence

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]
Running = list[RunningAgent | RunningJob | Topics]


def replace(agent: RunningAgent, settings: KafkaSettings, running: Running) -> RunningAgent:
    """Kill *agent* and start another in its place."""
    agent.kill()
    successor = RunningAgent(agent.directory, settings)
    running.append(successor)
    return successor.wait_listening()


def test_a_job_that_hangs_is_known_to_the_next_agent(
    settings: KafkaSettings, topics: Topics, jobs: JobServer, tmp_path: Path, running: Running
) -> None:
    agent, job, announced = begin(settings, topics, jobs, tmp_path, running, "job-h", steps=200, step_s=0.01, leash=100)
    until(lambda: topics.last_step("job-h") >= 98, 100, "the job stands still", agent)
    told_us = max(b.sent_at_us for b in topics.batches("job-h") if any(r.duration_us for r in b.ranks))
    hangs = until(lambda: [b for b in topics.batches("job-h") if b.sent_at_us > told_us], 100, "nothing comes", agent)[-1]
    assert not any(r.duration_us for r in hangs.ranks)

    agent.kill()
    killed_us = time.time_ns() // 1_000
    agent = replace(agent, settings, running)
    request = ask(settings, announced, mode="stacks", steps=0, reason="blocked")
    until(lambda: len(topics.messages("summaries")) == 2, 100, "the stacks of both ranks", agent)
    for evidence in topics.messages("summaries"):
        assert isinstance(evidence, StackEvidence)
        assert (evidence.who.request, evidence.who.job) == (request.request, "job-h")
        if "no permission" in evidence.error:
            pytest.skip(evidence.error)
        assert evidence.error == ""
        assert any("stand_still (" in t for t in evidence.threads), evidence.threads
        assert evidence.last_event in ("optimizer_exit", "iteration")
    last = until(lambda: [b for b in topics.batches("job-h") if b.sent_at_us > killed_us], 100, "a sign of life", agent)[0]
    assert {r.rank: r.last_event for r in last.ranks} == {r.rank: r.last_event for r in hangs.ranks}
    before = {r.rank: r.idle_us for r in hangs.ranks}
    passed_us = last.sent_at_us - hangs.sent_at_us
    assert all(r.idle_us == pytest.approx(before[r.rank] + passed_us, abs=2e5) for r in last.ranks)

    job.finish()
    until(lambda: topics.announcements("job-h")[-1].ended, 100, "the end is announced", agent)
    assert agent.stop() == 0, agent.text()
    until(lambda: topics.last_step("job-h") >= 198, 100, "the last iterations", agent)
    for steps in topics.steps_of("job-h").values():
        assert steps == sorted(set(steps)) and len(steps) >= 190, "iterations are missing or repeated"
    assert {a.started_at_us for a in topics.announcements("job-h")} == {announced.started_at_us}


def test_of_two_launches_of_one_name_the_next_agent_refuses_the_same(
    settings: KafkaSettings, topics: Topics, jobs: JobServer, tmp_path: Path, running: Running
) -> None:
    agent, first, announced = begin(settings, topics, jobs, tmp_path, running, "twin", steps=60, step_s=0.01, leash=30)
    until(lambda: topics.last_step("twin") >= 28, 100, "the first launch stands still", agent)
    second = RunningJob(jobs, tmp_path / "run", "twin", step_s=0.02)
    running.append(second)
    until(lambda: "two launches are alive under one name" in agent.text(), 100, "the second launch is refused", agent)

    agent = replace(agent, settings, running)
    mark = len(topics.records("iterations"))
    until(lambda: "two launches are alive under one name" in agent.text(), 100, "it is refused again", agent)
    until(lambda: len(topics.records("iterations")) >= mark + 10, 100, "the agent reports", agent)
    # Only the first launch is told of, as before.
    assert {b.run_id for b in topics.batches("twin")[-8:]} == {announced.run_id}
    assert topics.announcements("twin")[-1].run_id == announced.run_id

    ask(settings, announced, mode="stacks", steps=0, reason="blocked")
    until(lambda: len(topics.messages("summaries")) == 2, 100, "the stacks of the first launch", agent)
    found = [m for m in topics.messages("summaries") if isinstance(m, StackEvidence)]
    assert {e.who.pid for e in found} == set(first.pids)

    # When it has ended the second one has the name.
    first.finish()
    until(lambda: topics.announcements("twin")[-1].run_id != announced.run_id, 100, "the second launch is announced", agent)
    second.finish()
    assert agent.stop() == 0, agent.text()
