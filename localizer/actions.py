"""What to do about a cause, by its class: one sentence each."""

from __future__ import annotations

from eroica.schemas.verdicts import Action, CauseClass

ACTIONS: dict[CauseClass, Action] = {
    "worker": Action(
        kind="check", text="look at the named functions on this worker; drain its host if they are not the job's own doing"
    ),
    "host": Action(
        kind="drain", text="all workers of one host are slow: drain the host and look for other processes, throttling and clocks"
    ),
    "link": Action(kind="check", text="check the link and its counters"),
    "fabric": Action(kind="check", text="check the fabric: congestion, errors, routing"),
    "pipeline_stage": Action(kind="tune", text="rebalance the layers over the stages"),
    "data_imbalance": Action(kind="tune", text="balance the sequence lengths over the replicas"),
    "software_pause": Action(
        kind="tune", text="synchronise or avoid the pauses, e.g. collect garbage on all ranks at the same step"
    ),
    "whole_job": Action(kind="rollback", text="compare with the last good version of code, data and configuration"),
    "hang": Action(
        kind="check",
        text="look at the stacks of the workers that stand elsewhere than the rest, then restart without their hosts",
    ),
    "unknown": Action(kind="watch", text="profile again if it lasts"),
}
