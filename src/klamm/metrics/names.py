"""Every metric that a broker has: name, type and meaning, in the order of a scrape.

The names are those under which dashboards for Kafka look for them: Kafka's own beans as the usual rules of
Prometheus's JMX exporter write them, and the ones of kafka_exporter for partitions and groups. What only
Klamm has begins with `klamm_`. docs/METRICS.md lists the same names; a test compares.
"""

from __future__ import annotations

from klamm.metrics.text import Family


def _counter(name: str, text: str) -> Family:
    return Family(name, "counter", text)


def _gauge(name: str, text: str) -> Family:
    return Family(name, "gauge", text)


_TOPICS = "kafka_server_brokertopicmetrics_"
MESSAGES_IN = _counter(f"{_TOPICS}messagesin_total", "Records written to partitions that this broker led.")
BYTES_IN = _counter(f"{_TOPICS}bytesin_total", "Bytes of record batches that producers wrote.")
BYTES_OUT = _counter(f"{_TOPICS}bytesout_total", "Bytes of record batches answered to consumers.")
REPLICATION_BYTES_IN = _counter(
    f"{_TOPICS}replicationbytesin_total", "Bytes of record batches fetched from leaders."
)
REPLICATION_BYTES_OUT = _counter(
    f"{_TOPICS}replicationbytesout_total", "Bytes of record batches answered to followers."
)
PRODUCES = _counter(f"{_TOPICS}totalproducerequests_total", "Batches of producers, refused ones included.")
FAILED_PRODUCES = _counter(f"{_TOPICS}failedproducerequests_total", "Batches of producers that were refused.")
FETCHES = _counter(
    f"{_TOPICS}totalfetchrequests_total", "Answers to fetches, one for each partition in them."
)
FAILED_FETCHES = _counter(f"{_TOPICS}failedfetchrequests_total", "Those of them that were an error.")

_REPLICAS = "kafka_server_replicamanager_"
UNDER_REPLICATED = _gauge(
    f"{_REPLICAS}underreplicatedpartitions", "Partitions led here that lack replicas in sync."
)
UNDER_MIN_ISR = _gauge(
    f"{_REPLICAS}underminisrpartitioncount",
    "Partitions led here with fewer replicas in sync than min.insync.replicas.",
)
LEADERS = _gauge(f"{_REPLICAS}leadercount", "Partitions that this broker leads.")
PARTITIONS = _gauge(f"{_REPLICAS}partitioncount", "Partitions that have a replica on this broker.")
OFFLINE_REPLICAS = _gauge(f"{_REPLICAS}offlinereplicacount", "Replicas whose log this broker cannot use.")
ISR_SHRINKS = _counter(f"{_REPLICAS}isrshrinks_total", "Replicas in sync taken off by leaders here.")
ISR_EXPANDS = _counter(f"{_REPLICAS}isrexpands_total", "Replicas in sync added by leaders here.")

_CONTROLLER = "kafka_controller_kafkacontroller_"
ACTIVE_CONTROLLER = _gauge(
    f"{_CONTROLLER}activecontrollercount", "1 if this broker is the controller; the sum must be 1."
)
ACTIVE_BROKERS = _gauge(f"{_CONTROLLER}activebrokercount", "Living brokers; told by the controller.")
OFFLINE_PARTITIONS = _gauge(
    f"{_CONTROLLER}offlinepartitionscount", "Partitions without a leader; told by the controller."
)
GLOBAL_TOPICS = _gauge(f"{_CONTROLLER}globaltopiccount", "Topics of the cluster; told by the controller.")
GLOBAL_PARTITIONS = _gauge(
    f"{_CONTROLLER}globalpartitioncount", "Partitions of the cluster; told by the controller."
)

REQUEST_TIMES = Family(
    "kafka_network_requestmetrics_totaltimems",
    "summary",
    "Milliseconds from reading a request to having its answer; quantiles of the last one to two minutes.",
)

_SOCKETS = "kafka_server_socketservermetrics_"
CONNECTIONS = _gauge(f"{_SOCKETS}connection_count", "Open connections.")
ACCEPTED = _counter(f"{_SOCKETS}connection_creation_total", "Connections accepted.")
REFUSED = _counter("klamm_connections_refused_total", "Connections closed at once because of a limit.")

LOG_SIZE = _gauge("kafka_log_log_size", "Bytes of a replica on this broker.")
CURRENT_OFFSET = _gauge("kafka_topic_partition_current_offset", "The end offset; told by the leader.")
OLDEST_OFFSET = _gauge("kafka_topic_partition_oldest_offset", "The start offset; told by the leader.")

GROUP_OFFSET = _gauge(
    "kafka_consumergroup_current_offset", "The committed offset; told by the group's coordinator."
)
GROUP_LAG = _gauge(
    "kafka_consumergroup_lag", "Records behind the committed offset; told by the group's coordinator."
)
GROUP_MEMBERS = _gauge("kafka_consumergroup_members", "Members; told by the group's coordinator.")

OFFLINE_DIRECTORIES = _gauge("kafka_log_logmanager_offlinelogdirectorycount", "Log directories that failed.")
DIRECTORY_OFFLINE = _gauge("kafka_log_logmanager_logdirectoryoffline", "1 if a log directory failed.")
DISK_SIZE = _gauge("klamm_log_directory_disk_bytes", "The size of the file system of a log directory.")
DISK_FREE = _gauge("klamm_log_directory_free_bytes", "What this process may still use of it.")

LOOP_LAG = Family(
    "klamm_event_loop_lag_seconds",
    "summary",
    "How late a timer of the event loop was; quantiles of the last one to two minutes.",
)
CPU_SECONDS = _counter("process_cpu_seconds_total", "CPU time of this process.")
RESIDENT_BYTES = _gauge("process_resident_memory_bytes", "Memory of this process.")
OPEN_DESCRIPTORS = _gauge("process_open_fds", "Open file descriptors.")
MOST_DESCRIPTORS = _gauge("process_max_fds", "The most that may be open.")
START_TIME = _gauge("process_start_time_seconds", "When this process started, in seconds since 1970.")

FAMILIES = tuple(each for each in list(globals().values()) if isinstance(each, Family))
