package klamm;

import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.execution.datasources.v2.python.PythonWriteBuilder;
import org.apache.spark.sql.internal.connector.SupportsStreamingUpdateAsAppend;

// In update mode the rows that changed are appended: the last record of a key is the one that counts.
public class TopicWriteBuilder extends PythonWriteBuilder implements SupportsStreamingUpdateAsAppend {
    public TopicWriteBuilder(PythonDataSourceV2 source, String name, LogicalWriteInfo info) {
        super(source, name, info);
    }
}
