"""Numbers of ranks, hosts and racks, as a scenario writes them."""

from __future__ import annotations

from eroica.schemas.errors import SchemaError
from eroica.schemas.ranks import RankArray, parse_ranks
from eroica.schemas.wording import say_count
from eroica.simulator.problem import ScenarioError

__all__ = ["numbers"]


def numbers(text: str | int, count: int, noun: str, at: str) -> RankArray:
    """The numbers that *text* stands for, shape (n,).

    :param count: how many of *noun* (rank, host, rack) the job has.
    :param at: path of the field.
    :raises ScenarioError: it is no set of numbers, or names one that the job does not have.
    """
    try:
        found = parse_ranks(str(text))
    except SchemaError as error:
        raise ScenarioError(error.what, at, do="write numbers or ranges, e.g. '0-3,7'") from error
    if found.size and found.max() >= count:
        have = f"the job has {say_count(count, noun)}, numbered from 0"
        raise ScenarioError(f"there is no {noun} {int(found.max())}", at, "job.world", do=have)
    return found
