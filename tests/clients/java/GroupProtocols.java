// What Kafka's own consumers say of a broker without the newer group protocols: one line for each protocol, with
// the exception that its poll raises, or "no exception" after the given number of seconds.

import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

public class GroupProtocols {
    static String raisedBy(Callable<?> poll, long seconds) throws Exception {
        long deadline = System.nanoTime() + seconds * 1_000_000_000L;
        while (System.nanoTime() < deadline) {
            try {
                poll.call();
            } catch (RuntimeException raised) {
                return raised.getClass().getSimpleName() + ": " + raised.getMessage();
            }
        }
        return "no exception";
    }

    public static void main(String[] arguments) throws Exception {
        String topic = arguments[1];
        long seconds = Long.parseLong(arguments[2]);
        ByteArrayDeserializer bytes = new ByteArrayDeserializer();
        Map<String, Object> settings = Map.of("bootstrap.servers", arguments[0], "group.id", topic + "-new");
        Map<String, Object> newer = new HashMap<>(settings);
        newer.put("group.protocol", "consumer");
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(newer, bytes, bytes)) {
            consumer.subscribe(List.of(topic));
            System.out.println("consumer " + raisedBy(() -> consumer.poll(Duration.ofSeconds(1)), seconds));
        }
        KafkaShareConsumer<byte[], byte[]> share = new KafkaShareConsumer<>(settings, bytes, bytes);
        share.subscribe(List.of(topic));
        System.out.println("share " + raisedBy(() -> share.poll(Duration.ofSeconds(1)), seconds));
        System.out.flush();
        Runtime.getRuntime().halt(0);  // closing would wait for a coordinator that does not know the member
    }
}
