"""The admin client: topics, configurations, groups, offsets, records, log directories and the cluster."""
