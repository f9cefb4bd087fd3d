"""A real Apache Kafka (KRaft) without Docker: one broker for a stack, several for fault tests."""

import base64
import os
import shutil
import signal
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from relay_devstack import jars
from relay_devstack.daemons import Command, Daemon, run
from relay_devstack.errors import StartFailedError, disk_faults
from relay_devstack.java import find_java
from relay_devstack.ports import NO_PINS, PortBook
from relay_devstack.waiting import until_none

FIXED_SETTINGS: Mapping[str, str] = {
    "process.roles": "broker,controller",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    "group.initial.rebalance.delay.ms": "0",
    "auto.create.topics.enable": "false",
    # Else a broker waits 13 s for its own old session after a kill.
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    # Else a second member of a KIP-848 group waits 10 s for its partitions.
    "group.consumer.heartbeat.interval.ms": "500",
    "group.consumer.min.heartbeat.interval.ms": "500",
    "group.consumer.session.timeout.ms": "6000",
    "group.consumer.min.session.timeout.ms": "3000",
}
REPLICATED_LOGS = (
    "offsets.topic.replication.factor",
    "transaction.state.log.replication.factor",
    "share.coordinator.state.topic.replication.factor",
)
IN_SYNC_REPLICAS = ("transaction.state.log.min.isr", "share.coordinator.state.topic.min.isr")
# Small and up in three seconds; what lasts longer is better off with the whole compiler.
QUICK_JVM = ("-Xms128m", "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
LASTING_JVM = ("-Xms512m", "-Xmx512m", "-XX:+UseSerialGC")
LOG4J = """<Configuration status="warn"><Appenders><Console name="out" target="SYSTEM_OUT">
<PatternLayout pattern="%d{ISO8601} %p %c: %m%n"/></Console></Appenders>
<Loggers><Root level="warn"><AppenderRef ref="out"/></Root></Loggers></Configuration>
"""


@dataclass(frozen=True, slots=True)
class Broker:
    """One node: its number from 1, its process, its folder."""

    number: int
    daemon: Daemon
    folder: Path

    @property
    def port_name(self) -> str:
        """The name of its client port in the port book."""
        return "kafka" if self.number == 1 else f"kafka-{self.number}"


class KafkaCluster:
    """`brokers` nodes of one state folder; data, ports and logs stay there between starts."""

    def __init__(
        self,
        state_dir: Path,
        brokers: int = 1,
        java: str | None = None,
        environ: Mapping[str, str] = NO_PINS,
        jvm: Sequence[str] = QUICK_JVM,
    ) -> None:
        """Run on `java`, else on what `find_java` finds, with the options `jvm`; take pinned ports
        from `environ`."""
        self.state_dir = state_dir
        self._java = java
        self._jvm = jvm
        self._ports = PortBook(state_dir, environ)
        self._brokers = [_broker(state_dir, number + 1) for number in range(brokers)]

    @property
    def bootstrap(self) -> str:
        """The client addresses of all brokers, comma separated."""
        return ",".join(f"127.0.0.1:{self._client_port(broker)}" for broker in self._brokers)

    def start(self) -> None:
        """Start every broker that is not running and return when all of them are in the cluster.

        Raises StartFailedError with the end of a log, PortTakenError, DiskFullError,
        WrongDigestError, NoNetworkError.
        """
        self._claim_ports()
        for broker in self._brokers:
            self._launch(broker)
        until_none(self._missing, 90, "Kafka")

    def stop(self) -> None:
        """Stop all brokers, the controllers of the last majority after the others."""
        for broker in reversed(self._brokers):
            broker.daemon.stop(signal.SIGTERM, grace_seconds=30 if len(self._brokers) == 1 else 5)

    def kill(self, number: int = 1) -> None:
        """End broker `number` (from 1) with SIGKILL."""
        self._brokers[number - 1].daemon.stop(signal.SIGKILL)

    def start_broker(self, number: int = 1) -> None:
        """Start broker `number` again and return when it is in the cluster."""
        self._launch(self._brokers[number - 1])
        until_none(lambda: self._absent({number}), 90, f"Kafka broker {number}")

    def destroy(self) -> None:
        """Stop all brokers at once and remove their data."""
        for broker in self._brokers:
            broker.daemon.stop(signal.SIGKILL)
        shutil.rmtree(self.state_dir / "kafka", ignore_errors=True)

    def running(self) -> bool:
        """Return whether all processes of this state folder are alive."""
        return all(broker.daemon.process() for broker in self._brokers)

    def _claim_ports(self) -> None:
        for broker in self._brokers:
            if broker.daemon.process() is None:
                self._ports.claim(broker.port_name)
                self._ports.claim(f"{broker.port_name}-controller")

    def _launch(self, broker: Broker) -> None:
        if broker.daemon.process() is not None:
            return
        with disk_faults(broker.folder):
            broker.folder.mkdir(parents=True, exist_ok=True)
            (broker.folder / "log4j2.xml").write_text(LOG4J)
            settings = self._settings(broker)
            lines = [f"{name}={value}\n" for name, value in settings.items()]
            (broker.folder / "server.properties").write_text("".join(lines))
        if not (broker.folder / "data" / "meta.properties").exists():
            self._format(broker)
        broker.daemon.start(self._java_command(broker, "kafka.Kafka", "server.properties"))

    def _settings(self, broker: Broker) -> dict[str, str]:
        client = f"127.0.0.1:{self._client_port(broker)}"
        copies = min(3, len(self._brokers))
        return {
            **FIXED_SETTINGS,
            **dict.fromkeys(REPLICATED_LOGS, str(copies)),
            **dict.fromkeys(IN_SYNC_REPLICAS, str(max(1, copies - 1))),
            "default.replication.factor": str(copies),
            "min.insync.replicas": str(max(1, copies - 1)),
            "node.id": str(broker.number),
            "listeners": f"PLAINTEXT://{client},CONTROLLER://{self._controller(broker)}",
            "advertised.listeners": f"PLAINTEXT://{client}",
            "log.dirs": str(broker.folder / "data"),
            **self._quorum(),
        }

    def _quorum(self) -> dict[str, str]:
        addresses = [self._controller(broker) for broker in self._brokers]
        if len(addresses) == 1:
            return {"controller.quorum.bootstrap.servers": addresses[0]}
        voters = [f"{number}@{address}" for number, address in enumerate(addresses, start=1)]
        return {"controller.quorum.voters": ",".join(voters)}

    def _format(self, broker: Broker) -> None:
        standalone = ["--standalone"] if len(self._brokers) == 1 else []
        cluster = self._cluster_id()  # one in 64 begins with a dash: in one word with its option
        command = self._java_command(
            broker, "kafka.tools.StorageTool", "format", f"--cluster-id={cluster}", *standalone
        )
        done = run(replace(command, argv=[*command.argv, "-c", "server.properties"]))
        if done.returncode != 0:
            said = (done.stderr or done.stdout).decode(errors="replace").strip()
            raise StartFailedError(f"Kafka could not format {broker.folder}: {said[-400:]}")

    def _cluster_id(self) -> str:
        file = self.state_dir / "kafka" / "cluster-id"
        if not file.exists():
            file.write_text(base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("="))
        return file.read_text()

    def _java_command(self, broker: Broker, main: str, *arguments: str) -> Command:
        log4j = f"-Dlog4j2.configurationFile={broker.folder / 'log4j2.xml'}"
        program = [self._java or find_java(), *self._jvm, log4j, "-cp", f"{jars.folder()}/*"]
        return Command([*program, main, *arguments], dict(os.environ), broker.folder)

    def _missing(self) -> str | None:
        for broker in self._brokers:
            if died := broker.daemon.died():
                raise StartFailedError(f"Kafka did not start: {died}")
        return self._absent({broker.number for broker in self._brokers})

    def _absent(self, numbers: set[int]) -> str | None:
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        try:
            found = admin.list_topics(timeout=2).brokers
        except KafkaException as error:
            return str(error)
        absent = numbers - set(found)
        return f"no answer from broker {sorted(absent)}" if absent else None

    def _client_port(self, broker: Broker) -> int:
        return self._known(broker.port_name)

    def _controller(self, broker: Broker) -> str:
        return f"127.0.0.1:{self._known(f'{broker.port_name}-controller')}"

    def _known(self, name: str) -> int:
        port = self._ports.known(name)
        if port is None:
            raise StartFailedError("This Kafka was never started: call start() first.")
        return port


def _broker(state_dir: Path, number: int) -> Broker:
    name = "kafka" if number == 1 else f"kafka-{number}"
    return Broker(number, Daemon(state_dir, name), state_dir / "kafka" / str(number))
