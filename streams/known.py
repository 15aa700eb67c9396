"""What detect knows besides iterations: the jobs as they announce themselves, and the requests that others made."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from eroica.bus.table import CompactedTable
from eroica.schemas.codec import decode_as
from eroica.schemas.control import ProfileRequest
from eroica.schemas.errors import TopologyError
from eroica.schemas.jobs import JobAnnouncement
from eroica.schemas.settings import KafkaSettings
from eroica.streams.job import JobCore
from eroica.topology.jobview import JobView, JobViewBuilder

_log = logging.getLogger(__name__)

READ_TIMEOUT_S = 60.0


class KnownJobs:
    """Follows the topics ``jobs`` and ``control`` as tables. Used from one thread, except that :meth:`start` may run in
    another.
    """

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._jobs: CompactedTable[JobAnnouncement] | None = None
        self._control: CompactedTable[ProfileRequest] | None = None
        self._seen: dict[bytes, JobAnnouncement] = {}
        self._builders: dict[str, JobViewBuilder] = {}
        self._views: dict[str, JobView] = {}
        self._requests: dict[str, list[ProfileRequest]] = {}
        self._complaints: dict[str, str] = {}

    def start(self) -> None:
        """Read both topics as they are now; blocks.

        :raises BrokerError: when that does not come to an end.
        """
        self.close()
        self._jobs = CompactedTable(
            self._settings, "jobs", lambda raw: decode_as(JobAnnouncement, raw), client_id="eroica-detect"
        )
        self._control = CompactedTable(
            self._settings,
            "control",
            lambda raw: decode_as(ProfileRequest, raw),
            key_of=_request_key,
            client_id="eroica-detect",
        )
        self._jobs.wait_ready(READ_TIMEOUT_S)
        self._control.wait_ready(READ_TIMEOUT_S)
        self.refresh()

    def close(self) -> None:
        """Stop following."""
        for table in (self._jobs, self._control):
            if table is not None:
                table.close()

    def refresh(self) -> None:
        """Take in what the tables learned since the last call."""
        if self._jobs is None or self._control is None:
            return
        self._take(self._jobs.snapshot())
        requests: dict[str, list[ProfileRequest]] = {}
        for request in self._control.snapshot().values():
            requests.setdefault(request.job, []).append(request)
        self._requests = requests

    def tell(self, core: JobCore, job: str) -> None:
        """Tell *core* what is known of *job*."""
        view = self._views.get(job)
        if view is not None:
            core.feed_job(view)
        for request in self._requests.get(job, ()):
            core.feed_request(request)

    def tell_all(self, core: JobCore) -> None:
        """Tell *core* of all jobs that it watches."""
        for job in core.jobs():
            self.tell(core, job)

    def _take(self, rows: Mapping[bytes, JobAnnouncement]) -> None:
        changed: set[str] = set()
        for key, announcement in rows.items():
            if self._seen.get(key) is not announcement:
                builder = self._builders.setdefault(announcement.job, JobViewBuilder())
                if builder.feed(announcement):
                    changed.add(announcement.job)
        if changed or len(rows) < len(self._seen):
            # Names come from the network: what is no longer on the topic is not kept.
            alive = {announcement.job for announcement in rows.values()}
            for job in self._builders.keys() - alive:
                for table in (self._builders, self._views, self._complaints):
                    table.pop(job, None)
        self._seen = dict(rows)
        for job in sorted(changed):
            try:
                self._views[job] = self._builders[job].view()
                self._complaints.pop(job, None)
            except TopologyError as error:
                self._views.pop(job, None)
                if self._complaints.get(job) != str(error):
                    self._complaints[job] = str(error)
                    _log.warning("job %s: all ranks are compared with each other, since %s", job, error)


def _request_key(key: bytes, request: ProfileRequest) -> bytes:
    """The last request of a job and its last scheduled one: an alarm between must not make detect forget the schedule."""
    return key + b"\0scheduled" if request.reason == "scheduled" else key
