"""The sink: every topic into ClickHouse, in large batches, each record once (G5, G8)."""
