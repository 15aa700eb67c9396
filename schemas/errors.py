"""One tree of errors. Each says what is wrong, where, and what to do; each knows the exit code of a command that ends with it."""

from __future__ import annotations

from typing import ClassVar

__all__ = [
    "BrokerAway",
    "BrokerError",
    "EroicaError",
    "InvalidInput",
    "MessageTooLarge",
    "MissingDependency",
    "SchemaError",
    "TopicMissing",
    "TopologyError",
    "UnknownMajorVersion",
    "UsageError",
    "extra_missing",
    "install_extra",
]


class EroicaError(Exception):
    """Root of the tree.

    :param what: what is wrong, one sentence.
    :param where: topic/partition/offset, job, rank, file or option concerned; may be empty.
    :param do: what the reader can do about it; may be empty.
    """

    exit_code: ClassVar[int] = 3

    def __init__(self, what: str, *, where: str = "", do: str = "") -> None:
        self.what = what
        self.where = where
        self.do = do
        super().__init__(str(self))

    def __str__(self) -> str:
        text = f"{self.where}: {self.what}" if self.where else self.what
        return f"{text}. {self.do}" if self.do else text


class UsageError(EroicaError):
    """A command or setting was used wrongly (exit code 2)."""

    exit_code = 2


class MissingDependency(UsageError):
    """An optional package or program that this command needs is not installed (exit code 2)."""


def extra_missing(extra: str) -> str:
    """What to do where the optional part *extra* of the package is not installed; every text for people says it this way.

    >>> extra_missing("agent")
    "the extra agent is missing: pip install '.[agent]' in the checkout"
    """
    return f"the extra {extra} is missing: {install_extra(extra)}"


def install_extra(extra: str) -> str:
    """How the optional part *extra* of the package is installed; the package is installed from a checkout."""
    return f"pip install '.[{extra}]' in the checkout"


class InvalidInput(EroicaError):
    """A file, message or trace cannot be understood (exit code 3)."""

    exit_code = 3


class SchemaError(InvalidInput):
    """A message does not have the shape its topic promises."""


class UnknownMajorVersion(SchemaError):
    """A well-formed message was written by a newer, incompatible version of the schema."""


class MessageTooLarge(SchemaError):
    """A message is over the size its topic allows."""


class TopologyError(InvalidInput):
    """Two sources disagree about the shape of a job, or a layout is impossible."""


class BrokerError(EroicaError):
    """The broker cannot be reached, refuses us, or lacks a topic (exit code 4)."""

    exit_code = 4


class BrokerAway(BrokerError):
    """The broker does not answer for now: the same may succeed later (exit code 4).

    :param reached: whether something took our connection, this time or before; False where nothing listens at the address.
    """

    def __init__(self, what: str, *, where: str = "", do: str = "", reached: bool = True) -> None:
        super().__init__(what, where=where, do=do)
        self.reached = reached


class TopicMissing(BrokerAway):
    """The broker lacks a topic for now: somebody has to create it (exit code 4)."""
