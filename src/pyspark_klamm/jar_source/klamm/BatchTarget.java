package klamm;

import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;

// The Python data source as Spark makes it, with batch writes. DefaultSource writes batches through it.
public class BatchTarget extends PythonDataSourceV2 {
    public void setShortName(String name) {
        super.setShortName("klamm");
    }
}
