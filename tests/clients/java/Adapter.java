// The adapter of Kafka's own Java client: calls as lines of JSON on stdin, answers on stdout (see ../remote.py).

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.stream.Collectors;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.ConsumerGroupDescription;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.RebalanceInProgressException;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

public class Adapter {
    static final Duration PATIENCE = Duration.ofSeconds(30);
    static final Map<String, String> STRATEGIES = Map.of(
        "range", "RangeAssignor",
        "roundrobin", "RoundRobinAssignor",
        "sticky", "StickyAssignor",
        "cooperative", "CooperativeStickyAssignor");

    static final ObjectMapper JSON = new ObjectMapper();
    static final Map<Integer, Member> MEMBERS = new ConcurrentHashMap<>();
    static final AtomicInteger LAST_HANDLE = new AtomicInteger();
    static String bootstrap;
    static Admin admin;

    public static void main(String[] arguments) throws Exception {
        bootstrap = arguments[0];
        admin = Admin.create(Map.of("bootstrap.servers", bootstrap));
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        ExecutorService pool = Executors.newCachedThreadPool();
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            JsonNode request = JSON.readTree(line);
            pool.execute(() -> {
                String answer = answer(request).toString();
                synchronized (out) {
                    out.println(answer);
                }
            });
        }
        admin.close(Duration.ofSeconds(1));
        System.exit(0);
    }

    static ObjectNode answer(JsonNode request) {
        ObjectNode answer = JSON.createObjectNode().put("id", request.get("id").asInt());
        try {
            answer.set("result", JSON.valueToTree(call(request)));
        } catch (Throwable thrown) {
            Throwable cause = thrown;
            while ((cause instanceof ExecutionException || cause instanceof java.util.concurrent.CompletionException)
                && cause.getCause() != null) {
                cause = cause.getCause();
            }
            answer.put("code", Errors.forException(cause).code()).put("error", cause.toString());
        }
        return answer;
    }

    static Object call(JsonNode request) throws Exception {
        String topic = request.path("topic").asText(null);
        String group = request.path("group").asText(null);
        TopicPartition partition = new TopicPartition(topic == null ? "" : topic, request.path("partition").asInt());
        switch (request.get("call").asText()) {
            case "produce": return produce(request, partition);
            case "consume": return consume(partition, request.get("offset").asLong(), request.get("count").asInt());
            case "join": return join(request);
            case "member_state": return member(request).state(request.get("since").asInt());
            case "member_commit": return member(request).commit(request.get("offsets"));
            case "member_leave": return member(request).leave();
            case "list_topics": return wait(admin.listTopics().names());
            case "create_topic": return wait(admin.createTopics(List.of(newTopic(request))).all());
            case "delete_topic": return wait(admin.deleteTopics(List.of(topic)).all());
            case "partition_count":
                return wait(admin.describeTopics(List.of(topic)).allTopicNames()).get(topic).partitions().size();
            case "create_partitions":
                NewPartitions total = NewPartitions.increaseTo(request.get("total").asInt());
                return wait(admin.createPartitions(Map.of(topic, total)).all());
            case "topic_config": return topicConfig(topic);
            case "set_topic_config": return setTopicConfig(topic, request.get("config"));
            case "delete_records":
                RecordsToDelete before = RecordsToDelete.beforeOffset(request.get("before").asLong());
                return wait(admin.deleteRecords(Map.of(partition, before)).lowWatermarks().get(partition)).lowWatermark();
            case "watermarks":
                return List.of(offset(partition, OffsetSpec.earliest()), offset(partition, OffsetSpec.latest()));
            case "offset_for_time":
                long found = offset(partition, OffsetSpec.forTimestamp(request.get("timestamp_ms").asLong()));
                return found < 0 ? null : found;
            case "list_groups":
                return wait(admin.listGroups().all()).stream().map(one -> one.groupId()).collect(Collectors.toList());
            case "describe_group": return describeGroup(group);
            case "delete_group": return wait(admin.deleteConsumerGroups(List.of(group)).all());
            case "committed":
                OffsetAndMetadata committed =
                    wait(admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata()).get(partition);
                return committed == null ? null : committed.offset();
            case "delete_group_offsets":
                return wait(admin.deleteConsumerGroupOffsets(group, Set.of(partition)).partitionResult(partition));
            default: throw new IllegalArgumentException("no such call: " + request.get("call"));
        }
    }

    static <T> T wait(org.apache.kafka.common.KafkaFuture<T> future) throws Exception {
        return future.get(PATIENCE.toSeconds(), TimeUnit.SECONDS);
    }

    // ---- producing and consuming

    static List<Long> produce(JsonNode request, TopicPartition to) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("compression.type", request.get("codec").asText());
        settings.put("acks", request.get("acks").asText());
        settings.put("enable.idempotence", request.get("idempotent").asBoolean());
        settings.put("linger.ms", 5);
        settings.put("max.request.size", 10_000_000);
        settings.put("delivery.timeout.ms", 30_000);
        settings.put("request.timeout.ms", 10_000);
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        try (KafkaProducer<byte[], byte[]> producer =
            new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer())) {
            for (JsonNode row : request.get("records")) {
                List<Header> headers = new ArrayList<>();
                for (JsonNode header : row.get("headers")) {
                    headers.add(new RecordHeader(header.get(0).asText(), decode(header.get(1))));
                }
                Long timestamp = row.get("timestamp_ms").isNull() ? null : row.get("timestamp_ms").asLong();
                sent.add(producer.send(new ProducerRecord<>(
                    to.topic(), to.partition(), timestamp, decode(row.get("key")), decode(row.get("value")), headers)));
            }
        }
        List<Long> offsets = new ArrayList<>();
        for (Future<RecordMetadata> one : sent) {
            offsets.add(one.get().offset());
        }
        return offsets;
    }

    static List<Map<String, Object>> consume(TopicPartition from, long offset, int count) {
        Properties settings = consumerSettings();
        settings.put("auto.offset.reset", "none");
        List<Map<String, Object>> rows = new ArrayList<>();
        try (KafkaConsumer<byte[], byte[]> consumer = newConsumer(settings)) {
            consumer.assign(List.of(from));
            consumer.seek(from, offset);
            long deadline = System.nanoTime() + PATIENCE.toNanos();
            while (rows.size() < count && System.nanoTime() < deadline) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(200))) {
                    if (rows.size() < count) {
                        rows.add(received(record));
                    }
                }
            }
        }
        return rows;
    }

    static Properties consumerSettings() {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("enable.auto.commit", false);
        return settings;
    }

    static KafkaConsumer<byte[], byte[]> newConsumer(Properties settings) {
        return new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    static Map<String, Object> received(ConsumerRecord<byte[], byte[]> record) {
        List<List<String>> headers = new ArrayList<>();
        for (Header header : record.headers()) {
            headers.add(List.of(header.key(), encode(header.value())));
        }
        Map<String, Object> row = new HashMap<>();
        row.put("partition", record.partition());
        row.put("offset", record.offset());
        row.put("key", encode(record.key()));
        row.put("value", encode(record.value()));
        row.put("headers", headers);
        row.put("timestamp_ms", record.timestamp());
        row.put("timestamp_type", record.timestampType().name);
        return row;
    }

    static String encode(byte[] data) {
        return data == null ? null : Base64.getEncoder().encodeToString(data);
    }

    static byte[] decode(JsonNode text) {
        return text.isNull() ? null : Base64.getDecoder().decode(text.asText());
    }

    // ---- members of groups

    static int join(JsonNode request) {
        Properties settings = consumerSettings();
        settings.put("group.id", request.get("group").asText());
        settings.put("group.protocol", "classic");
        settings.put("client.id", request.get("client_id").asText());
        settings.put("partition.assignment.strategy",
            "org.apache.kafka.clients.consumer." + STRATEGIES.get(request.get("strategy").asText()));
        settings.put("auto.offset.reset", "earliest");
        settings.put("session.timeout.ms", request.get("session_timeout_ms").asInt());
        settings.put("heartbeat.interval.ms", request.get("heartbeat_interval_ms").asInt());
        settings.put("max.poll.interval.ms", request.get("rebalance_timeout_ms").asInt());
        settings.put("metadata.max.age.ms", request.get("metadata_max_age_ms").asInt());
        if (!request.get("instance_id").isNull()) {
            settings.put("group.instance.id", request.get("instance_id").asText());
        }
        int handle = LAST_HANDLE.incrementAndGet();
        boolean commits = request.path("commits_when_revoked").asBoolean(false);
        Member member = new Member(settings, request.get("topic").asText(), commits);
        MEMBERS.put(handle, member);
        member.start();
        return handle;
    }

    static Member member(JsonNode request) {
        return MEMBERS.get(request.get("member").asInt());
    }

    /** One consumer of a group, polling in its own thread; commits are handed to that thread. */
    static class Member extends Thread implements ConsumerRebalanceListener {
        private final Properties settings;
        private final String topic;
        private final boolean commitsWhenRevoked;
        private final List<Map<String, Object>> received = new ArrayList<>();
        private final Set<Integer> assignment = new TreeSet<>();
        private final Set<Integer> revoked = new TreeSet<>();
        private final List<List<Object>> handovers = new ArrayList<>();
        private final ConcurrentLinkedQueue<CommitTask> commits = new ConcurrentLinkedQueue<>();
        private KafkaConsumer<byte[], byte[]> consumer;
        private int assignmentsSeen;
        private volatile boolean leaving;
        private boolean closing;
        private volatile RuntimeException failure;

        Member(Properties settings, String topic, boolean commitsWhenRevoked) {
            this.settings = settings;
            this.topic = topic;
            this.commitsWhenRevoked = commitsWhenRevoked;
            setDaemon(true);
        }

        @Override
        public void run() {
            try {
                consumer = newConsumer(settings);
                consumer.subscribe(List.of(topic), this);
                while (!leaving) {
                    for (CommitTask task = commits.poll(); task != null; task = commits.poll()) {
                        task.run(consumer);
                    }
                    pollOnce();
                }
                while (commitsWhenRevoked && !hasCommitted()) {
                    pollOnce();
                }
                closing = true;
                consumer.close();
            } catch (RuntimeException error) {
                failure = error;
            }
        }

        private void pollOnce() {
            for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(50))) {
                synchronized (this) {
                    received.add(Adapter.received(record));
                }
            }
        }

        /** No member commits while it is part of a rebalance: it has to poll until that is over. */
        private boolean hasCommitted() {
            try {
                consumer.commitSync(PATIENCE);
                return true;
            } catch (RebalanceInProgressException error) {
                return false;
            }
        }

        @Override
        public synchronized void onPartitionsAssigned(Collection<TopicPartition> partitions) {
            partitions.forEach(one -> assignment.add(one.partition()));
            assignmentsSeen++;
            note(true, partitions);
        }

        @Override
        public synchronized void onPartitionsRevoked(Collection<TopicPartition> partitions) {
            if (commitsWhenRevoked && !closing) {
                consumer.commitSync(PATIENCE);
            }
            note(false, partitions);
            for (TopicPartition one : partitions) {
                assignment.remove(one.partition());
                if (!leaving) {
                    revoked.add(one.partition());
                }
            }
        }

        private void note(boolean isTaken, Collection<TopicPartition> partitions) {
            List<Integer> numbers = partitions.stream().map(one -> one.partition()).collect(Collectors.toList());
            handovers.add(List.of(System.currentTimeMillis(), isTaken, numbers));
        }

        synchronized Map<String, Object> state(int since) {
            if (failure != null) {
                throw failure;
            }
            return Map.of(
                "received", new ArrayList<>(received.subList(since, received.size())),
                "assignment", new ArrayList<>(assignment),
                "assignments_seen", assignmentsSeen,
                "revoked", new ArrayList<>(revoked),
                "handovers", new ArrayList<>(handovers));
        }

        Object commit(JsonNode offsets) throws Exception {
            Map<TopicPartition, OffsetAndMetadata> chosen = null;
            if (!offsets.isNull()) {
                chosen = new HashMap<>();
                for (JsonNode row : offsets) {
                    OffsetAndMetadata offset = new OffsetAndMetadata(row.get(1).asLong(), Optional.empty(), "");
                    chosen.put(new TopicPartition(topic, row.get(0).asInt()), offset);
                }
            }
            CommitTask task = new CommitTask(chosen);
            commits.add(task);
            return task.done.get(PATIENCE.toSeconds(), TimeUnit.SECONDS);
        }

        Object leave() throws InterruptedException {
            leaving = true;
            join(PATIENCE.toMillis());
            if (failure != null) {
                throw failure;
            }
            if (isAlive()) {
                throw new IllegalStateException("the member did not close in time");
            }
            return null;
        }
    }

    static class CommitTask {
        final Map<TopicPartition, OffsetAndMetadata> offsets;
        final CompletableFuture<Object> done = new CompletableFuture<>();

        CommitTask(Map<TopicPartition, OffsetAndMetadata> offsets) {
            this.offsets = offsets;
        }

        void run(KafkaConsumer<byte[], byte[]> consumer) {
            try {
                if (offsets == null) {
                    consumer.commitSync(PATIENCE);
                } else {
                    consumer.commitSync(offsets, PATIENCE);
                }
                done.complete(null);
            } catch (RuntimeException error) {
                done.completeExceptionally(error);
            }
        }
    }

    // ---- administration

    static NewTopic newTopic(JsonNode request) {
        Map<String, String> config = new HashMap<>();
        request.get("config").fields().forEachRemaining(entry -> config.put(entry.getKey(), entry.getValue().asText()));
        short replicationFactor = (short) request.get("replication_factor").asInt();
        return new NewTopic(request.get("topic").asText(), request.get("partitions").asInt(), replicationFactor)
            .configs(config);
    }

    static Map<String, String> topicConfig(String topic) throws Exception {
        ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        Map<String, String> config = new HashMap<>();
        for (ConfigEntry entry : wait(admin.describeConfigs(List.of(resource)).all()).get(resource).entries()) {
            config.put(entry.name(), entry.value());
        }
        return config;
    }

    static Object setTopicConfig(String topic, JsonNode config) throws Exception {
        Collection<AlterConfigOp> operations = new ArrayList<>();
        config.fields().forEachRemaining(entry -> operations.add(new AlterConfigOp(
            new ConfigEntry(entry.getKey(), entry.getValue().asText()), AlterConfigOp.OpType.SET)));
        ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        return wait(admin.incrementalAlterConfigs(Map.of(resource, operations)).all());
    }

    static long offset(TopicPartition partition, OffsetSpec spec) throws Exception {
        return wait(admin.listOffsets(Map.of(partition, spec)).partitionResult(partition)).offset();
    }

    static Map<String, Object> describeGroup(String group) throws Exception {
        ConsumerGroupDescription found = wait(admin.describeConsumerGroups(List.of(group)).all()).get(group);
        Map<String, List<Integer>> members = new HashMap<>();
        found.members().forEach(member -> members.put(member.clientId(),
            member.assignment().topicPartitions().stream().map(one -> one.partition()).collect(Collectors.toList())));
        return Map.of("state", found.groupState().toString(), "members", members);
    }
}
