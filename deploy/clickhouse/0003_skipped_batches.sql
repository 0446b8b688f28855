-- A batch without an optimizer step leaves the run's step as it was: its report is told from the one before by
-- the number of batches. A column can join the key only in the statement that adds it, and without a default.
ALTER TABLE {database}.train_steps_log
    ADD COLUMN IF NOT EXISTS num_batches Int64 AFTER batch_ids,
    ADD COLUMN IF NOT EXISTS num_steps Nullable(Int64) AFTER num_batches,
    MODIFY ORDER BY (run_id, step, num_batches);

CREATE OR REPLACE VIEW {database}.train_steps AS
SELECT * EXCEPT (kafka_partition, kafka_offset, kafka_timestamp) FROM {database}.train_steps_log FINAL;

ALTER TABLE {database}.batches_log
    ADD COLUMN IF NOT EXISTS settled_outcome_sum Float64 AFTER last_offset,
    ADD COLUMN IF NOT EXISTS settled_num_outcomes Int64 AFTER settled_outcome_sum;

CREATE OR REPLACE VIEW {database}.batches AS
SELECT
    batch_id,
    any(num_shards) AS num_shards,
    count() AS num_shards_seen,
    any(manifest_hash) AS manifest_hash,
    min(policy_version_min) AS policy_version_min,
    max(policy_version_max) AS policy_version_max,
    groupArrayArray(attempt_ids) AS attempt_ids,
    groupUniqArrayArray(group_ids) AS group_ids,
    sum(num_transitions) AS num_transitions,
    any(source_partition) AS source_partition,
    any(last_offset) AS last_offset,
    any(settled_outcome_sum) AS settled_outcome_sum,
    any(settled_num_outcomes) AS settled_num_outcomes,
    min(time) AS time
FROM {database}.batches_log FINAL
GROUP BY batch_id;
