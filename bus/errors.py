"""librdkafka's errors, translated once into the project's: what is wrong, where, what to do."""

from __future__ import annotations

from typing import Final

from confluent_kafka import KafkaError, KafkaException

from eroica.schemas.errors import BrokerAway, BrokerError, EroicaError, MessageTooLarge, TopicMissing

_UNREACHABLE = (KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT, KafkaError._RESOLVE, KafkaError._TIMED_OUT)

_AWAY = (
    *_UNREACHABLE,
    KafkaError._MSG_TIMED_OUT,
    KafkaError._TIMED_OUT_QUEUE,
    KafkaError._WAIT_COORD,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError.NETWORK_EXCEPTION,
    KafkaError.BROKER_NOT_AVAILABLE,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
)

_NO_TOPIC = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION)

_ADVICE: Final[dict[int, tuple[str, str]]] = {
    **dict.fromkeys(_UNREACHABLE, ("the Kafka broker cannot be reached", "check the bootstrap address and that the broker runs")),
    KafkaError._MSG_TIMED_OUT: ("a message was not delivered in time", "check that the broker is up and its disks are not full"),
    KafkaError._AUTHENTICATION: ("the broker refused our credentials", "check sasl.mechanism, sasl.username and sasl.password"),
    KafkaError.SASL_AUTHENTICATION_FAILED: (
        "the broker refused our credentials",
        "check sasl.mechanism, sasl.username and sasl.password",
    ),
    KafkaError._SSL: ("the TLS connection failed", "check security.protocol, ssl.ca.location and the broker's certificate"),
    KafkaError.TOPIC_AUTHORIZATION_FAILED: ("we are not allowed to use this topic", "ask for read and write rights on it"),
    KafkaError.GROUP_AUTHORIZATION_FAILED: ("we are not allowed to use this consumer group", "ask for read rights on it"),
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: ("we are not allowed to do this on the cluster", "ask its administrator"),
    KafkaError.UNKNOWN_TOPIC_OR_PART: ("the topic does not exist", "create the topics with: eroica topics ensure"),
    KafkaError._UNKNOWN_TOPIC: ("the topic does not exist", "create the topics with: eroica topics ensure"),
    KafkaError._UNKNOWN_PARTITION: ("the partition does not exist", "create the topics with: eroica topics ensure"),
    KafkaError.INVALID_REPLICATION_FACTOR: (
        "too few brokers for the wished replication",
        "start more brokers or ask for fewer replicas",
    ),
    KafkaError.UNSUPPORTED_VERSION: ("the broker does not know this request", "use Apache Kafka 2.1 or newer"),
    KafkaError._INVALID_ARG: ("a Kafka setting is wrong", "see the client's message and the [kafka] settings"),
    KafkaError._FENCED: ("another process took over our transactional id", "run one process per transactional id"),
}


def translate(error: KafkaError | KafkaException, where: str) -> EroicaError:
    """The project's error for *error*.

    :param where: topic, partition, group or address concerned.
    :returns: :class:`MessageTooLarge` for a size limit, :class:`BrokerAway` for what time may cure (a topic that somebody creates
        again, too), :class:`BrokerError` for
        everything else; raising is the caller's part.
    """
    cause: KafkaError | None = None
    if isinstance(error, KafkaException):
        first = error.args[0] if error.args else None
        cause = first if isinstance(first, KafkaError) else None
    else:
        cause = error
    if cause is None:
        return BrokerError(f"the Kafka client failed ({error})", where=where)
    if cause.code() == KafkaError.MSG_SIZE_TOO_LARGE:
        return MessageTooLarge(
            "the message is larger than the topic allows", where=where, do="raise max.message.bytes or send less"
        )
    what, do = _ADVICE.get(cause.code(), ("the Kafka broker answered with an error", ""))
    kind = BrokerAway if not cause.fatal() and (cause.code() in _AWAY or cause.retriable()) else BrokerError
    kind = TopicMissing if cause.code() in _NO_TOPIC else kind
    return kind(f"{what} ({cause.name()}: {cause.str()})", where=where, do=do)


def is_passing(error: KafkaError) -> bool:
    """Whether a consumer should wait for *error* to go away: the client reconnects and retries on its own."""
    return not error.fatal() and error.code() not in (
        KafkaError._AUTHENTICATION,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError._SSL,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError._INVALID_ARG,
        KafkaError._FENCED,
    )
