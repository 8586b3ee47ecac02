// What klamm-kafka-format.jar holds, in Java. The jar itself is made by kafka_format.py, without a compiler; a test
// compiles these files and compares.
//
// Spark keeps the name "kafka" for its own connector: where that one is not on the class path, Spark looks for a
// class kafka.DefaultSource. This one hands reads and streams over to the Python data source of that name.
//
// A batch write goes another way. Spark lets Python data sources write with the modes append and overwrite alone,
// but programs written for Kafka give no mode. So the table does not offer batch writes, whereupon Spark asks for
// a CreatableRelationProvider, and that writes by format("klamm").
package kafka;

import java.util.Map;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.SQLContext;
import org.apache.spark.sql.SaveMode;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.sources.BaseRelation;
import org.apache.spark.sql.sources.CreatableRelationProvider;
import org.apache.spark.sql.types.StructType;

public class DefaultSource extends PythonDataSourceV2 implements CreatableRelationProvider {
    public Table getTable(StructType schema, Transform[] partitioning, Map<String, String> properties) {
        return new TopicTable(this, "kafka", schema);
    }

    public BaseRelation createRelation(
            SQLContext context,
            SaveMode mode,
            scala.collection.immutable.Map<String, String> parameters,
            Dataset<Row> data) {
        data.write()
                .format("klamm")
                .options(parameters)
                .mode(mode.name().replace("ErrorIfExists", "Append"))
                .save();
        return null; // there is nothing to read back, and Spark does not insist
    }
}
