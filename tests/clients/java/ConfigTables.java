// Kafka's own tables of configuration keys: a line of tab-separated facts for each key.

import java.util.Map;
import java.util.TreeMap;
import java.util.function.Function;
import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.common.config.ConfigDef.ConfigKey;
import org.apache.kafka.coordinator.group.GroupConfig;
import org.apache.kafka.server.config.AbstractKafkaConfig;
import org.apache.kafka.server.config.DynamicBrokerConfig;
import org.apache.kafka.server.config.DynamicConfig;
import org.apache.kafka.server.config.ServerTopicConfigSynonyms;
import org.apache.kafka.storage.internals.log.LogConfig;

public class ConfigTables {
    public static void main(String[] arguments) {
        Map<String, String> modes = DynamicBrokerConfig.dynamicConfigUpdateModes();
        Map<String, String> synonyms = ServerTopicConfigSynonyms.TOPIC_CONFIG_SYNONYMS;
        print("broker", AbstractKafkaConfig.CONFIG_DEF.configKeys(), key -> modes.getOrDefault(key, "read-only"));
        print("dynamic", DynamicConfig.Broker.configKeys(), key -> modes.getOrDefault(key, "read-only"));
        print("topic", LogConfig.configKeys(), key -> synonyms.getOrDefault(key, ""));
        print("group", GroupConfig.CONFIG_DEF.configKeys(), key -> GroupConfig.brokerSynonym(key).orElse(""));
    }

    private static void print(String table, Map<String, ConfigKey> keys, Function<String, String> last) {
        for (ConfigKey key : new TreeMap<>(keys).values()) {
            String value = key.hasDefault() ? ConfigDef.convertToString(key.defaultValue, key.type) : null;
            System.out.println(String.join("\t", table, key.name, key.type.toString(),
                value == null ? "null" : value, key.validator == null ? "" : key.validator.toString(),
                key.importance.toString(), key.internalConfig ? "internal" : "", last.apply(key.name)));
        }
    }
}
