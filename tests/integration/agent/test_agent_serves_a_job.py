"""An agent beside a real job: what it did is on the topics, a profile becomes summaries, a stuck job gives its stacks."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from agent_kit import JobServer, RunningAgent, RunningJob, Topics, ask, begin, until

from eroica.schemas.settings import KafkaSettings
from eroica.schemas.summaries import StackEvidence, Summary

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]
Running = list[RunningAgent | RunningJob | Topics]


def test_a_job_is_announced_reported_profiled_and_said_goodbye_to(
    settings: KafkaSettings, topics: Topics, jobs: JobServer, tmp_path: Path, running: Running
) -> None:
    agent, job, announced = begin(settings, topics, jobs, tmp_path, running, "job-a", step_s=0.02)
    assert (announced.host, announced.world_size, announced.launcher) == ("host-a", 2, "env")
    request = ask(settings, announced)
    until(lambda: len(topics.messages("summaries")) == 2, 100, "both summaries", agent)
    summaries = [m for m in topics.messages("summaries") if isinstance(m, Summary)]
    assert len(summaries) == 2, topics.messages("summaries")
    assert {m.who.rank for m in summaries} == {0, 1}
    assert {m.who.request for m in summaries} == {request.request}
    assert all(m.last_step - m.first_step + 1 == 3 for m in summaries)
    assert all({"cpu_busy", "load1"} <= {metric.name for metric in m.metrics} for m in summaries)
    assert {r.key for r in topics.records("summaries")} == {f"job-a/{request.request}/all".encode()}

    trained = job.finish()
    until(lambda: topics.announcements("job-a")[-1].ended, 100, "the end is announced", agent)
    assert agent.stop() == 0, agent.text()
    until(lambda: topics.last_step("job-a") >= trained - 2, 100, "the last iterations", agent)
    steps = topics.steps_of("job-a")
    for rank in (0, 1):
        assert steps[rank] == sorted(set(steps[rank]))
        assert len(steps[rank]) >= trained - 20, "iterations are missing"
    assert not list(tmp_path.glob("*eroica-traces-*")), "traces were left behind"


def test_a_stuck_job_gives_its_stacks(
    settings: KafkaSettings, topics: Topics, jobs: JobServer, tmp_path: Path, running: Running
) -> None:
    agent, job, announced = begin(settings, topics, jobs, tmp_path, running, "job-s", steps=100, step_s=0.01, leash=50)
    until(lambda: topics.last_step("job-s") >= 48, 100, "the job stands still", agent)
    ask(settings, announced, mode="stacks", steps=0, reason="blocked")
    until(lambda: len(topics.messages("summaries")) == 2, 100, "stacks", agent)
    for evidence in topics.messages("summaries"):
        assert isinstance(evidence, StackEvidence)
        if "no permission" in evidence.error:
            pytest.skip(evidence.error)
        assert evidence.error == ""
        assert any("/MainThread/" in t and "stand_still (" in t for t in evidence.threads), evidence.threads
        assert evidence.idle_us > 0
        assert evidence.last_event in ("optimizer_exit", "iteration")
    job.finish()
    agent.signal(signal.SIGINT)
    assert agent.process.wait(100) == 0
