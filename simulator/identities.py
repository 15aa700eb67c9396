"""Who a rank is, as its summaries say."""

from __future__ import annotations

import numpy as np

from eroica.schemas.control import ProfileRequest
from eroica.schemas.summaries import Identity
from eroica.simulator.workload import Workload

__all__ = ["FIRST_PID", "Identities"]

FIRST_PID = 20_000


class Identities:
    """Identities of a job's ranks in the answers to one request."""

    def __init__(self, work: Workload, request: ProfileRequest) -> None:
        self._work, self._request = work, request
        self._coords = {axis: values.tolist() for axis, values in work.layout.coordinates().items()}
        self._classes = sorted(request.classes)
        self._class_of = np.empty(work.world, dtype=np.int64)
        for name, ranks in work.classes.items():
            self._class_of[ranks] = self._classes.index(name)

    def of(self, rank: int) -> Identity:
        """Who *rank* is."""
        work, request = self._work, self._request
        local = int(work.hosts.rail_of[rank])
        return Identity(
            job=request.job,
            run_id=request.run_id,
            request=request.request,
            cls=self._classes[int(self._class_of[rank])],
            rank=rank,
            world_size=work.world,
            host=work.host_name(rank),
            local_rank=local,
            pid=FIRST_PID + local,
            device=work.devices[rank],
            coords={axis: values[rank] for axis, values in self._coords.items()},
        )
