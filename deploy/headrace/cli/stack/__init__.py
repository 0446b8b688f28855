"""The local stack: Kafka, ClickHouse and the processors as child processes of one supervisor."""
