"""Settings of every component: one frozen class each, every number with its unit and source; one precedence for all.

Flags (``--set section.key=value``) beat the environment (``EROICA_SECTION__KEY``), which beats a TOML file (``--config`` or
``EROICA_CONFIG``), which beats the defaults. Cores get their settings passed in and never read the environment.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
    TomlConfigSettingsSource,
)

from eroica.schemas.environment import BETWEEN, CONFIG, PREFIX, Variables
from eroica.schemas.errors import UsageError
from eroica.schemas.wrongsetting import not_json, unknown_section, wrong_setting

MAX_FILE_BYTES = 1_000_000
"""Of a settings file."""


MAX_MS = 30 * 86_400_000
"""A month: the longest time that a setting may ask for, in ms."""


class Section(BaseModel):
    """A component's settings: frozen, unknown keys refused, every number finite and within bounds."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    def digest(self) -> str:
        """16 hex digits that change whenever a value does."""
        raw = orjson.dumps(self.model_dump(mode="json"), option=orjson.OPT_SORT_KEYS)
        return hashlib.sha256(raw).hexdigest()[:16]


class KafkaSettings(Section):
    """How to reach the broker."""

    bootstrap: str = Field("localhost:9092", description="host:port of one or more brokers, comma separated")
    prefix: str = Field("eroica.", description="in front of every topic's name", max_length=100, pattern=r"^[a-zA-Z0-9._-]*$")
    extra: dict[str, str] = Field(
        default_factory=dict, description="librdkafka properties passed through, e.g. security.protocol, sasl.username"
    )
    connect_timeout_ms: int = Field(5_000, gt=0, le=600_000, description="how long to try before saying that no broker is there")


class AgentSettings(Section):
    """The host's agent."""

    batch_interval_ms: int = Field(
        1_000, gt=0, le=MAX_MS, description="how often a host's iterations are sent; also the sign of life"
    )
    ranks_per_shard: int = Field(1_024, gt=0, le=1_048_576, description="ranks of one job that share a key on iterations")
    announce_interval_ms: int = Field(30_000, gt=0, le=MAX_MS, description="how often a job is announced again")
    spool_max_bytes: int = Field(
        256 * 2**20, gt=0, le=2**44, description="disk used while the broker is away; the oldest go first"
    )
    trace_directory: str = Field("/dev/shm", description="memory-backed storage for traces; /tmp where it is absent")
    trace_max_bytes: int = Field(4 * 2**30, gt=0, le=2**40, description="a larger trace is not read; the summary says so")
    summary_timeout_ms: int = Field(120_000, gt=0, le=MAX_MS, description="a summariser that takes longer is ended")
    summary_processes: int = Field(2, gt=0, le=256, description="summarisers at once on a host, niced")
    max_profile_ms: int = Field(60_000, gt=0, le=MAX_MS, description="a profile is stopped after this, whatever was asked")
    stacks_timeout_ms: int = Field(20_000, gt=0, le=MAX_MS, description="limit for one dump of stacks")
    sample_interval_ms: int = Field(
        250, ge=20, le=MAX_MS, description="between two samples of hardware and host while a profile is under way"
    )
    dcgm_url: str = Field(
        "", description="a DCGM exporter to read GPUs from, instead of NVML, e.g. http://localhost:9400/metrics"
    )
    node_exporter_url: str = Field("", description="a node exporter to read beside the host's own files")


class DetectSettings(Section):
    """When a job is slow enough to be profiled ([P] §3)."""

    window: int = Field(50, gt=1, le=100_000, description="iterations in a window ([P] N = 50)")
    recent: int = Field(
        1_000, gt=1, le=1_000_000, description="iterations that 'recent' spans for the reference ([P] leaves it open)"
    )
    degradation_ratio: float = Field(1.05, gt=1, le=100, description="mean of a window over the reference ([P] 1.05)")
    reference: Literal["shortest_window", "shortest_iteration"] = Field(
        "shortest_window",
        description="reference: lowest mean of a recent window (robust), or the shortest single iteration ([P] to the letter)",
    )
    confirm_windows: int = Field(2, gt=0, le=1_000, description="consecutive windows that must agree before a request")
    min_shift_mads: float = Field(
        3.0,
        ge=0,
        le=1_000,
        description="the mean must also move by this many robust standard errors of the reference window; 0: off",
    )
    spike_window: int = Field(50, gt=1, le=100_000, description="iterations of history for a spike ([G] 50)")
    spike_min_history: int = Field(20, gt=1, le=100_000, description="fewer say nothing ([G] 20)")
    spike_z: float = Field(3.0, gt=0, le=1_000, description="robust z of one iteration ([G] 3)")
    spike_ratio: float = Field(1.8, gt=1, le=1_000, description="and its ratio to the moving average ([G] 1.8)")
    spike_confirm: int = Field(3, gt=0, le=100_000, description="spikes within a window before a request; one spike is anybody's")
    blocked_factor: float = Field(5.0, gt=1, le=1_000, description="silence in mean iterations ([P] 5)")
    blocked_floor_ms: int = Field(30_000, gt=0, le=MAX_MS, description="and at least this long: a checkpoint is no hang")
    cooldown_ms: int = Field(
        600_000,
        ge=0,
        le=MAX_MS,
        description="after a request nothing more is asked for this job for so long, for the same or a lesser reason",
    )
    cooldown_worse_ratio: float = Field(
        1.25,
        gt=1,
        le=1_000,
        description="a confirmed level of so many times the one that was asked about is asked about at once, within the budget",
    )
    budget_share: float = Field(0.002, gt=0, le=1, description="profiled share of a job's iterations (dormant >= 99.8 %)")
    budget_min_steps: int = Field(20, ge=0, le=1_000_000, description="profiled steps that are always allowed")
    scheduled_every_ms: int = Field(
        21_600_000,
        ge=0,
        le=MAX_MS,
        description="a healthy profile of a job that nobody complains about, so often in its own time; 0: never",
    )
    scheduled_after: int = Field(500, gt=0, le=10**9, description="iterations without trouble before it")
    warmup: int = Field(
        10, ge=0, le=1_000_000, description="first iterations of a launch that count for nothing (compilation, caches)"
    )
    profile_steps: int = Field(5, ge=0, le=10_000, description="iterations to profile ([G] 2-3; 0: use profile_ms)")
    profile_ms: int = Field(20_000, ge=0, le=MAX_MS, description="length of a profile in ms where profile_steps is 0 ([P] 20 s)")
    lead_ms: int = Field(4_000, ge=0, le=MAX_MS, description="time for a request to reach every rank before its start step")
    lead_steps: int = Field(3, ge=1, le=100_000, description="and at least so many steps ahead")
    deadline_ms: int = Field(60_000, gt=0, le=MAX_MS, description="how long a class may stay incomplete")
    with_stack: bool = Field(True, description="ask for Python call stacks")
    shard_grace_steps: int = Field(
        4, ge=1, le=100_000, description="a step is closed when every reporting rank is so many steps further"
    )
    silence_ms: int = Field(20_000, gt=0, le=MAX_MS, description="a rank whose host says nothing for so long is declared absent")
    history_ms: int = Field(
        600_000, gt=0, le=MAX_MS, description="what is read again from the topic to rebuild state after a restart"
    )


class GroupSettings(Section):
    """Collecting the summaries of a request."""

    idle_ms: int = Field(
        45_000, gt=0, le=MAX_MS, description="a class that received something and then nothing for so long is closed"
    )
    max_chunk_bytes: int = Field(700_000, gt=0, le=8_000_000, description="encoded size of a chunk, below the topic's limit")
    history_ms: int = Field(
        600_000, gt=0, le=MAX_MS, description="what is read again from the topic to rebuild state after a restart"
    )
    max_open: int = Field(10_000, gt=0, le=1_000_000, description="classes open at once; beyond, the oldest is closed")


class LocalizeSettings(Section):
    """Comparing peers (docs/localisation.md)."""

    rules: Literal["eroica", "paper", "guide"] = Field("eroica", description="rule set")
    beta_min: float = Field(0.01, gt=0, le=1, description="functions below this share of the window do not matter ([P] 1 %)")
    python_beta_max: float = Field(0.01, gt=0, le=1, description="expected box, Python ([P])")
    collective_beta_max: float = Field(0.30, gt=0, le=1, description="expected box, collectives ([P])")
    peers_sampled: int = Field(100, gt=0, le=100_000, description="peers per worker for the differential distance ([P] N = 100)")
    peer_distance: float = Field(0.4, gt=0, le=10, description="Manhattan distance that counts as different ([P])")
    mad_factor: float = Field(5.0, gt=0, le=1_000, description="median + k MAD ([P] 5)")
    guide_z: float = Field(3.5, gt=0, le=1_000, description="robust z on p50 ([G])")
    seed: int = Field(1, ge=0, le=2**31 - 1, description="sampling of peers")
    outlier_z: float = Field(3.5, gt=0, le=1_000, description="robust z for own time against peers of the role")
    mad_floor_ratio: float = Field(
        0.10,
        gt=0,
        le=10,
        description="spread is taken as at least this share of the median over the number of steps (Megatron 10 %)",
    )
    min_effect: float = Field(0.03, ge=0, le=1, description="share of the step that mending the cause must give back")
    min_wait_share: float = Field(0.03, ge=0, le=1, description="who waits for less of the step is not named as waiting")
    accuse_confidence: float = Field(0.5, ge=0, le=1, description="below it nobody is accused")
    playbook_dir: str = Field(
        "", description="folder with YAML files of your own signatures, actions and remedies (docs/playbook.md)", max_length=4_000
    )


class EroicaSettings(BaseSettings):
    """Everything, by section."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, env_nested_delimiter=BETWEEN, frozen=True, extra="forbid")

    kafka: KafkaSettings = KafkaSettings()
    agent: AgentSettings = AgentSettings()
    detect: DetectSettings = DetectSettings()
    group: GroupSettings = GroupSettings()
    localize: LocalizeSettings = LocalizeSettings()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Flags, then environment, then the file."""
        variables = Variables(_sections())
        if isinstance(env_settings, EnvSettingsSource):
            env_settings.env_vars = {name: text for name, text in env_settings.env_vars.items() if not variables.strange(name)}
        sources: tuple[PydanticBaseSettingsSource, ...] = (init_settings, env_settings)
        file = os.environ.get(CONFIG)
        return (*sources, TomlConfigSettingsSource(settings_cls, toml_file=Path(file))) if file else sources


def _sections() -> dict[str, dict[str, FieldInfo]]:
    """Section → key → the setting."""
    return {section: dict(type(field.default).model_fields) for section, field in EroicaSettings.model_fields.items()}


def environment_warnings(environ: Iterable[str]) -> list[str]:
    """A sentence for each name of *environ* that looks like a variable of ours and is none, a few at most.

    They are no error: environments are shared, also between versions.
    """
    return Variables(_sections()).warnings(environ)


def load_settings(assignments: Iterable[str] = (), under: Mapping[str, Mapping[str, Any]] | None = None) -> EroicaSettings:
    """Settings from *assignments* (``"section.key=value"``), the environment, the file and the defaults, in that order.

    :param under: section → key → value, beaten by *assignments* only.
    :raises UsageError: an unknown section or key, a value of the wrong kind, a file that is not there or not TOML.
    """
    given: dict[str, dict[str, Any]] = {section: dict(values) for section, values in (under or {}).items()}
    for assignment in assignments:
        path, equals, value = assignment.partition("=")
        section, dot, key = path.strip().partition(".")
        if not equals or not dot or not key:
            raise UsageError(f"{assignment!r} is not section.key=value", do="e.g. --set detect.window=20")
        if section not in EroicaSettings.model_fields:
            raise unknown_section(section, EroicaSettings.model_fields, assignment)
        given.setdefault(section, {})[key] = value
    file = os.environ.get(CONFIG)
    if file and Path(file).is_file() and Path(file).stat().st_size > MAX_FILE_BYTES:
        raise UsageError(f"the settings file is over {MAX_FILE_BYTES} bytes", where=file, do="mend --config or EROICA_CONFIG")
    if file and not Path(file).is_file():
        raise UsageError("the settings file is not there", where=file, do="mend --config or EROICA_CONFIG")
    try:
        return EroicaSettings(**given)  # type: ignore[arg-type]  # pydantic converts the strings
    except ValidationError as error:
        raise wrong_setting(error, _sections(), given, os.environ, file) from error
    except SettingsError as error:
        raise not_json(os.environ, _sections()) from error
    except ValueError as error:
        raise UsageError(f"the settings file is not TOML: {error}", where=file or "") from error
