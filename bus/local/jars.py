"""The jars of Apache Kafka, fetched once by Maven into a per-user cache."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from importlib import resources
from pathlib import Path

from eroica.schemas.errors import BrokerError, MissingDependency

MIN_JAVA = 17
"""Apache Kafka 4 brokers need Java 17."""
MAVEN_TIMEOUT_S = 600.0
"""54 MB over a slow line."""


def data_file(name: str) -> str:
    """Text of a file that is shipped beside this module."""
    return resources.files("eroica.bus.local").joinpath(name).read_text(encoding="utf-8")


def kafka_version() -> str:
    """Version of Apache Kafka that is started, from the pom."""
    found = re.search(r"<kafka\.version>([0-9.]+)</kafka\.version>", data_file("pom.xml"))
    if found is None:
        raise BrokerError("the shipped pom.xml names no version of Kafka", where="bus/local/pom.xml")
    return found.group(1)


def find_java() -> str:
    """Path of a Java that can run the broker; ``JAVA_HOME`` first.

    :raises MissingDependency: there is none, or it is too old.
    """
    home = os.environ.get("JAVA_HOME")
    candidate = Path(home) / "bin" / "java" if home else None
    java = str(candidate) if candidate is not None and candidate.is_file() else shutil.which("java")
    advice = f"install Java {MIN_JAVA} or newer, or use the embedded broker"
    if java is None:
        raise MissingDependency("Apache Kafka needs Java, which is not installed", do=advice)
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False).stderr
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MissingDependency(f"Java does not start ({error})", where=java, do=advice) from error
    version = re.search(r'version "(\d+)', said)
    if version is None or int(version.group(1)) < MIN_JAVA:
        raise MissingDependency(f"this Java is too old for Apache Kafka 4: {said.splitlines()[:1]}", where=java, do=advice)
    return java


def cache_directory() -> Path:
    """Where the jars of this pom are kept: another pom gets another folder."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    digest = hashlib.sha256(data_file("pom.xml").encode()).hexdigest()[:8]
    return base / "eroica" / f"kafka-{kafka_version()}-{digest}"


def ensure_jars() -> Path:
    """Folder with the jars, fetched on first use; two processes may call at once.

    :raises MissingDependency: they are not cached and Maven is not installed.
    :raises BrokerError: Maven failed; with its own words.
    """
    target = cache_directory()
    if target.is_dir():
        return target
    maven = shutil.which("mvn")
    if maven is None:
        raise MissingDependency(
            "Apache Kafka's jars are fetched with Maven, which is not installed",
            do="install Maven (mvn), or use the embedded broker",
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    with (target.parent / "kafka.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.is_dir():
            _fetch(maven, target)
    return target


def _fetch(maven: str, target: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="fetch-", dir=target.parent) as folder:
        work = Path(folder)
        (work / "pom.xml").write_text(data_file("pom.xml"), encoding="utf-8")
        command = [maven, "-q", "-B", "dependency:copy-dependencies", f"-DoutputDirectory={work / 'jars'}"]
        try:
            done = subprocess.run(command, cwd=work, capture_output=True, text=True, timeout=MAVEN_TIMEOUT_S, check=False)
        except subprocess.TimeoutExpired as error:
            raise BrokerError("Maven did not fetch Kafka's jars in ten minutes", do="check the network") from error
        if done.returncode != 0:
            words = [line for line in (done.stdout + done.stderr).splitlines() if "ERROR" in line]
            raise BrokerError("Maven could not fetch Kafka's jars", do=" ".join(words[:2])[:500] or "run it by hand")
        (work / "jars").replace(target)
