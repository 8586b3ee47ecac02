package kafka;

// format("kafka"): Spark looks for this class where its own connector is not on the class path.
public class DefaultSource extends klamm.DefaultSource {}
