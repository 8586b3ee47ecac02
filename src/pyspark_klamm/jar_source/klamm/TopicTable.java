package klamm;

import java.util.EnumSet;
import java.util.Set;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.execution.datasources.v2.python.PythonTable;
import org.apache.spark.sql.types.StructType;

// A topic, without batch writes: DefaultSource says why.
public class TopicTable extends PythonTable {
    private final PythonDataSourceV2 source;

    public TopicTable(PythonDataSourceV2 source, String name, StructType schema) {
        super(source, name, schema);
        this.source = source;
    }

    public Set<TableCapability> capabilities() {
        return EnumSet.of(
                TableCapability.BATCH_READ,
                TableCapability.MICRO_BATCH_READ,
                TableCapability.STREAMING_WRITE,
                TableCapability.TRUNCATE);
    }

    public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
        return new TopicWriteBuilder(source, "klamm", info);
    }
}
