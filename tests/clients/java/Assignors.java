// Kafka's own assignors and the bytes its consumers exchange: calls as lines of JSON (see ../remote.py).

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.Assignment;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.GroupSubscription;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.Subscription;
import org.apache.kafka.clients.consumer.CooperativeStickyAssignor;
import org.apache.kafka.clients.consumer.RangeAssignor;
import org.apache.kafka.clients.consumer.RoundRobinAssignor;
import org.apache.kafka.clients.consumer.StickyAssignor;
import org.apache.kafka.clients.consumer.internals.ConsumerProtocol;
import org.apache.kafka.common.Cluster;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.PartitionInfo;
import org.apache.kafka.common.TopicPartition;

public class Assignors {
    static final ObjectMapper JSON = new ObjectMapper();

    public static void main(String[] arguments) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            JsonNode request = JSON.readTree(line);
            ObjectNode answer = JSON.createObjectNode().put("id", request.get("id").asInt());
            try {
                answer.set("result", JSON.valueToTree(call(request)));
            } catch (Throwable thrown) {
                answer.put("code", -1).put("error", thrown.toString());
            }
            System.out.println(answer);
        }
    }

    static Object call(JsonNode request) {
        switch (request.get("call").asText()) {
            case "assign": return assign(request);
            case "subscription": return subscription(request);
            case "assignment":
                return encode(ConsumerProtocol.serializeAssignment(new Assignment(partitions(request.get("partitions")))));
            case "read_assignment":
                return names(ConsumerProtocol.deserializeAssignment(decode(request.get("data"))).partitions());
            default: throw new IllegalArgumentException("no such call: " + request.get("call"));
        }
    }

    static ConsumerPartitionAssignor assignor(String name) {
        switch (name) {
            case "range": return new RangeAssignor();
            case "roundrobin": return new RoundRobinAssignor();
            case "sticky": return new StickyAssignor();
            case "cooperative-sticky": return new CooperativeStickyAssignor();
            default: throw new IllegalArgumentException("no such strategy: " + name);
        }
    }

    /** What the leader does: members are the bytes they sent, topics the racks of each partition's replicas. */
    static Object assign(JsonNode request) {
        Map<String, Subscription> members = new HashMap<>();
        for (JsonNode row : request.get("members")) {
            Subscription subscription = ConsumerProtocol.deserializeSubscription(decode(row.get("metadata")));
            if (!row.get("instance_id").isNull()) {
                subscription.setGroupInstanceId(Optional.of(row.get("instance_id").asText()));
            }
            members.put(row.get("member_id").asText(), subscription);
        }
        Map<String, List<String>> result = new TreeMap<>();
        assignor(request.get("strategy").asText())
            .assign(cluster(request.get("topics")), new GroupSubscription(members))
            .groupAssignment()
            .forEach((member, assignment) -> result.put(member, names(assignment.partitions())));
        return result;
    }

    static Cluster cluster(JsonNode topics) {
        Set<Node> nodes = new HashSet<>();
        List<PartitionInfo> partitions = new ArrayList<>();
        topics.fields().forEachRemaining(topic -> {
            for (int number = 0; number < topic.getValue().size(); number++) {
                List<Node> replicas = new ArrayList<>();
                for (JsonNode rack : topic.getValue().get(number)) {
                    replicas.add(new Node(nodes.size(), "host", 9092, rack.asText()));
                    nodes.add(replicas.get(replicas.size() - 1));
                }
                Node[] all = replicas.toArray(new Node[0]);
                partitions.add(new PartitionInfo(topic.getKey(), number, all.length > 0 ? all[0] : null, all, all));
            }
        });
        return new Cluster("cluster", nodes, partitions, Set.of(), Set.of());
    }

    /** What a member sends when it joins: "last" is what it was assigned before, if anything. */
    static String subscription(JsonNode request) {
        ConsumerPartitionAssignor assignor = assignor(request.get("strategy").asText());
        JsonNode last = request.get("last");
        if (!last.isNull()) {
            int generation = request.get("last_generation").asInt();
            assignor.onAssignment(
                new Assignment(partitions(last)),
                new ConsumerGroupMetadata("group", generation, "member", Optional.empty()));
        }
        List<String> topics = new ArrayList<>();
        request.get("topics").forEach(topic -> topics.add(topic.asText()));
        Optional<String> rack = request.get("rack").isNull() ? Optional.empty() : Optional.of(request.get("rack").asText());
        return encode(ConsumerProtocol.serializeSubscription(new Subscription(
            topics,
            assignor.subscriptionUserData(new HashSet<>(topics)),
            partitions(request.get("owned")),
            request.get("generation").asInt(),
            rack)));
    }

    static List<TopicPartition> partitions(JsonNode rows) {
        List<TopicPartition> partitions = new ArrayList<>();
        rows.forEach(row -> partitions.add(new TopicPartition(row.get(0).asText(), row.get(1).asInt())));
        return partitions;
    }

    static List<String> names(List<TopicPartition> partitions) {
        List<String> names = new ArrayList<>();
        partitions.forEach(partition -> names.add(partition.topic() + "-" + partition.partition()));
        return names;
    }

    static String encode(ByteBuffer data) {
        byte[] bytes = new byte[data.remaining()];
        data.duplicate().get(bytes);
        return Base64.getEncoder().encodeToString(bytes);
    }

    static ByteBuffer decode(JsonNode text) {
        return ByteBuffer.wrap(Base64.getDecoder().decode(text.asText()));
    }
}
