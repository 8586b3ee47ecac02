// What klamm-spark.jar holds, in Java. The jar itself is made by jar.py, without a compiler; a test compiles these
// files and compares.
package klamm;

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

// format("klamm"), in place of what Spark makes of a Python data source by itself: the same, and it also writes
// as Spark's connector for Kafka does. Batches need no save mode: Spark lets Python data sources write with append
// and overwrite alone, but asks a CreatableRelationProvider whatever the mode is when the table offers no batch
// writes. And streams may write in update mode.
public class DefaultSource extends PythonDataSourceV2 implements CreatableRelationProvider {
    public void setShortName(String name) {
        super.setShortName("klamm"); // the name of the Python data source, also if the query says "kafka"
    }

    public Table getTable(StructType schema, Transform[] partitioning, Map<String, String> properties) {
        return new TopicTable(this, "klamm", schema);
    }

    public BaseRelation createRelation(
            SQLContext context,
            SaveMode mode,
            scala.collection.immutable.Map<String, String> parameters,
            Dataset<Row> data) {
        data.write()
                .format("klamm.BatchTarget")
                .options(parameters)
                .mode(mode.name().replace("ErrorIfExists", "Append"))
                .save();
        return null; // Spark does not use the relation that this returns
    }
}
