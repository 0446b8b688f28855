"""Records, their Avro schemas, topics, ids and the codec between them."""
