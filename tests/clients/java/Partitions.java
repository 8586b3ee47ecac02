// Kafka's own choice of a partition: lines of a key in base64 and a number of partitions in, partitions out.

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import org.apache.kafka.clients.producer.internals.BuiltInPartitioner;

public class Partitions {
    public static void main(String[] arguments) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            int space = line.indexOf(' ');
            byte[] key = Base64.getDecoder().decode(line.substring(0, space));
            System.out.println(BuiltInPartitioner.partitionForKey(key, Integer.parseInt(line.substring(space + 1))));
        }
    }
}
