"""Runs Kafka's own command-line tools, in one JVM for all of them (java/ToolRunner.java)."""

from __future__ import annotations

from dataclasses import dataclass

from tests.clients.remote import Program, java_command

TOOLS = {
    "acls": "org.apache.kafka.tools.AclCommand",
    "api-versions": "org.apache.kafka.tools.BrokerApiVersionsCommand",
    "cluster": "org.apache.kafka.tools.ClusterTool",
    "configs": "kafka.admin.ConfigCommand",
    "console-consumer": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "console-producer": "org.apache.kafka.tools.ConsoleProducer",
    "consumer-groups": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "consumer-performance": "org.apache.kafka.tools.ConsumerPerformance",
    "delete-records": "org.apache.kafka.tools.DeleteRecordsCommand",
    "dump-log": "org.apache.kafka.tools.DumpLogSegments",
    "end-to-end-latency": "org.apache.kafka.tools.EndToEndLatency",
    "get-offsets": "org.apache.kafka.tools.GetOffsetShell",
    "groups": "org.apache.kafka.tools.GroupsCommand",
    "log-dirs": "org.apache.kafka.tools.LogDirsCommand",
    "producer-performance": "org.apache.kafka.tools.ProducerPerformance",
    "reassign-partitions": "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
    "topics": "org.apache.kafka.tools.TopicCommand",
    "transactions": "org.apache.kafka.tools.TransactionsCommand",
    "verifiable-consumer": "org.apache.kafka.tools.VerifiableConsumer",
    "verifiable-producer": "org.apache.kafka.tools.VerifiableProducer",
}


@dataclass(frozen=True)
class Outcome:
    """How a tool ended, and what it wrote."""

    status: int
    printed: str
    complained: str


class JavaTools:
    def __init__(self, bootstrap: str | None) -> None:
        self._bootstrap = bootstrap
        self._program = Program(java_command("ToolRunner"), {})

    def try_run(self, tool: str, *arguments: str, given: str = "") -> Outcome:
        """Run a tool; `{bootstrap}` in its arguments stands for the broker's address."""
        words = [word.replace("{bootstrap}", self._bootstrap or "") for word in arguments]
        answer = self._program.call("run", tool=TOOLS[tool], arguments=words, input=given)
        return Outcome(answer["status"], answer["printed"], answer["complained"])

    def run(self, tool: str, *arguments: str, given: str = "") -> str:
        """Run a tool that must succeed, and return what it printed."""
        outcome = self.try_run(tool, *arguments, given=given)
        assert outcome.status == 0, f"{tool} {' '.join(arguments)} failed:\n{outcome}"
        return outcome.printed

    def close(self) -> None:
        self._program.close()
