-- One table a topic, written by the sink. Rows are unique by their ORDER BY key, and of several with one
-- key the first in the log wins: `log_rank` is higher for lower offsets. A record that Kafka delivers
-- twice is dropped by its insert's deduplication token; whatever gets past that, by its key.
CREATE TABLE IF NOT EXISTS {database}.rollouts_log
(
    kafka_partition Int32,
    kafka_offset Int64,
    kafka_timestamp DateTime64(3, 'UTC'),
    log_rank UInt64 MATERIALIZED 18446744073709551615 - toUInt64(kafka_offset),
    kind LowCardinality(String),
    rollout_id String CODEC(ZSTD(1)),
    group_id String CODEC(ZSTD(1)),
    group_size Int32,
    task_id String,
    mode LowCardinality(String),
    task String CODEC(ZSTD(1)),
    config_timeout_s Float64,
    config_heartbeat_timeout_s Float64,
    config_max_attempts Int32,
    config_retry_on Array(LowCardinality(String)),
    config_reward_grace_s Float64,
    config_accept Array(LowCardinality(String)),
    config_credit_rule LowCardinality(String),
    config_agents Array(LowCardinality(String)),
    resources Map(LowCardinality(String), Int64),
    metadata Map(LowCardinality(String), String),
    time DateTime64(6, 'UTC'),
    CONSTRAINT known_kind CHECK kind IN ('enqueue', 'cancel'),
    CONSTRAINT rollout_id_is_uuidv7 CHECK match(rollout_id, '^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$')
)
ENGINE = ReplacingMergeTree(log_rank)
ORDER BY (rollout_id, kind, time)
SETTINGS non_replicated_deduplication_window = 10000;

CREATE TABLE IF NOT EXISTS {database}.tasks_log
(
    kafka_partition Int32,
    kafka_offset Int64,
    kafka_timestamp DateTime64(3, 'UTC'),
    log_rank UInt64 MATERIALIZED 18446744073709551615 - toUInt64(kafka_offset),
    rollout_id String CODEC(ZSTD(1)),
    attempt Int32,
    group_id String CODEC(ZSTD(1)),
    group_size Int32,
    task_id String,
    mode LowCardinality(String),
    task String CODEC(ZSTD(1)),
    config_timeout_s Float64,
    config_heartbeat_timeout_s Float64,
    config_max_attempts Int32,
    config_retry_on Array(LowCardinality(String)),
    config_reward_grace_s Float64,
    config_accept Array(LowCardinality(String)),
    config_credit_rule LowCardinality(String),
    config_agents Array(LowCardinality(String)),
    resources Map(LowCardinality(String), Int64),
    metadata Map(LowCardinality(String), String),
    time DateTime64(6, 'UTC'),
    CONSTRAINT rollout_id_is_uuidv7 CHECK match(rollout_id, '^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$')
)
ENGINE = ReplacingMergeTree(log_rank)
ORDER BY (rollout_id, attempt)
SETTINGS non_replicated_deduplication_window = 10000;

CREATE TABLE IF NOT EXISTS {database}.rollout_states_log
(
    kafka_partition Int32,
    kafka_offset Int64,
    kafka_timestamp DateTime64(3, 'UTC'),
    log_rank UInt64 MATERIALIZED 18446744073709551615 - toUInt64(kafka_offset),
    rollout_id String CODEC(ZSTD(1)),
    group_id String CODEC(ZSTD(1)),
    group_size Int32,
    task_id String,
    mode LowCardinality(String),
    state LowCardinality(String),
    is_final Bool,
    attempt Int32,
    attempt_id Nullable(String),
    attempt_status LowCardinality(Nullable(String)),
    error Nullable(String) CODEC(ZSTD(1)),
    revision Int32,
    metadata Map(LowCardinality(String), String),
    time DateTime64(6, 'UTC'),
    CONSTRAINT known_state CHECK state IN ('queuing', 'preparing', 'running', 'requeuing', 'succeeded', 'failed', 'cancelled'),
    CONSTRAINT rollout_id_is_uuidv7 CHECK match(rollout_id, '^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$')
)
ENGINE = ReplacingMergeTree(log_rank)
ORDER BY (rollout_id, revision)
SETTINGS non_replicated_deduplication_window = 10000;

CREATE TABLE IF NOT EXISTS {database}.attempts_log
(
    kafka_partition Int32,
    kafka_offset Int64,
    kafka_timestamp DateTime64(3, 'UTC'),
    log_rank UInt64 MATERIALIZED 18446744073709551615 - toUInt64(kafka_offset),
    rollout_id String CODEC(ZSTD(1)),
    attempt_id String CODEC(ZSTD(1)),
    attempt Int32,
    kind LowCardinality(String),
    status LowCardinality(String),
    runner_id String,
    last_sequence_id Nullable(Int64),
    error Nullable(String) CODEC(ZSTD(1)),
    group_id String CODEC(ZSTD(1)),
    group_size Int32,
    task_id String,
    mode LowCardinality(String),
    credit_rule LowCardinality(String),
    accept Array(LowCardinality(String)),
    reward_grace_s Float64,
    agents Array(LowCardinality(String)),
    dispatched Bool,
    max_attempts Int32,
    retry_on Array(LowCardinality(String)),
    resources Map(LowCardinality(String), Int64),
    time DateTime64(6, 'UTC'),
    CONSTRAINT known_kind CHECK kind IN ('started', 'heartbeat', 'ended'),
    CONSTRAINT status_fits_kind CHECK (kind = 'ended') = (status IN ('succeeded', 'failed', 'timeout', 'unresponsive', 'cancelled')),
    CONSTRAINT origin_fits_kind CHECK kind = 'ended' OR (kind = 'started') = (group_id != ''),
    CONSTRAINT last_sequence_id_is_a_count CHECK ifNull(last_sequence_id, 0) >= 0,
    CONSTRAINT rollout_id_is_uuidv7 CHECK match(rollout_id, '^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$'),
    CONSTRAINT attempt_id_is_uuidv7 CHECK match(attempt_id, '^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$')
)
ENGINE = ReplacingMergeTree(log_rank)
ORDER BY (rollout_id, attempt_id, kind, status, time, runner_id)
SETTINGS non_replicated_deduplication_window = 10000;

CREATE TABLE IF NOT EXISTS {database}.spans_log
(
    kafka_partition Int32,
    kafka_offset Int64,
    kafka_timestamp DateTime64(3, 'UTC'),
    log_rank UInt64 MATERIALIZED 18446744073709551615 - toUInt64(kafka_offset),
    rollout_id String,
    attempt_id String,
    sequence_id Int64,
    kind LowCardinality(String),
    trace_id String,
    span_id String,
    parent_span_id String,
    name LowCardinality(String),
    start_time DateTime64(6, 'UTC'),
    end_time DateTime64(6, 'UTC'),
    status LowCardinality(String),
    status_message String,
    attributes Map(LowCardinality(String), String),
    resource_attributes Map(LowCardinality(String), String),
    scope LowCardinality(String),
    events Nested(name String, time DateTime64(6, 'UTC'), attributes Map(LowCardinality(String), String)),
    links Nested(trace_id String, span_id String, attributes Map(LowCardinality(String), String)),
    has_generation Bool,
    agent LowCardinality(String),
    model LowCardinality(String),
    resource_name LowCardinality(Nullable(String)),
    resource_version Nullable(Int64),
    request String CODEC(ZSTD(1)),
    response String CODEC(ZSTD(1)),
    prompt_token_ids Array(Int32) CODEC(ZSTD(1)),
    response_token_ids Array(Int32) CODEC(ZSTD(1)),
    response_logprobs Array(Float64) CODEC(ZSTD(1)),
    prompt_tokens Nullable(Int64),
    completion_tokens Nullable(Int64),
    finish_reason LowCardinality(Nullable(String)),
    sampling Map(LowCardinality(String), Float64),
    choice_index Int32,
    num_choices Int32,
    untrainable_reason LowCardinality(Nullable(String)),
    CONSTRAINT known_kind CHECK kind IN ('internal', 'client', 'server', 'producer', 'consumer', 'void', 'closed'),
    CONSTRAINT known_status CHECK status IN ('unset', 'ok', 'error'),
    CONSTRAINT sequence_id_fits_kind CHECK (kind = 'closed') = (sequence_id = 0) AND sequence_id >= 0,
    CONSTRAINT has_span_id CHECK span_id != '',
    CONSTRAINT logprobs_are_finite CHECK arrayAll(x -> isFinite(x), response_logprobs),
    CONSTRAINT token_ids_are_not_negative CHECK arrayMin(arrayPushBack(prompt_token_ids, 0)) >= 0 AND arrayMin(arrayPushBack(response_token_ids, 0)) >= 0,
    CONSTRAINT rollout_id_is_uuidv7 CHECK match(rollout_id, '^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$'),
    CONSTRAINT attempt_id_is_uuidv7 CHECK match(attempt_id, '^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$')
)
ENGINE = ReplacingMergeTree(log_rank)
ORDER BY (rollout_id, attempt_id, sequence_id, span_id)
SETTINGS non_replicated_deduplication_window = 10000;

CREATE TABLE IF NOT EXISTS {database}.rewards_log
(
    kafka_partition Int32,
    kafka_offset Int64,
    kafka_timestamp DateTime64(3, 'UTC'),
    log_rank UInt64 MATERIALIZED 18446744073709551615 - toUInt64(kafka_offset),
    rollout_id String CODEC(ZSTD(1)),
    attempt_id String CODEC(ZSTD(1)),
    sequence_id Nullable(Int64),
    kind LowCardinality(String),
    reward_id String CODEC(ZSTD(1)),
    name LowCardinality(String),
    value Float64,
    about_sequence_id Nullable(Int64),
    source LowCardinality(String),
    time DateTime64(6, 'UTC'),
    CONSTRAINT known_kind CHECK kind IN ('reward', 'closed'),
    CONSTRAINT value_is_finite CHECK isFinite(value),
    CONSTRAINT has_name CHECK name != '',
    CONSTRAINT sequence_ids_are_positive CHECK ifNull(sequence_id, 1) >= 1 AND ifNull(about_sequence_id, 1) >= 1,
    CONSTRAINT mark_has_no_sequence_id CHECK kind != 'closed' OR isNull(sequence_id),
    CONSTRAINT rollout_id_is_uuidv7 CHECK match(rollout_id, '^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$'),
    CONSTRAINT attempt_id_is_uuidv7 CHECK match(attempt_id, '^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$'),
    CONSTRAINT reward_id_is_uuidv7 CHECK match(reward_id, '^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$')
)
ENGINE = ReplacingMergeTree(log_rank)
ORDER BY (rollout_id, attempt_id, reward_id)
SETTINGS non_replicated_deduplication_window = 10000;

CREATE TABLE IF NOT EXISTS {database}.trajectories_log
(
    kafka_partition Int32,
    kafka_offset Int64,
    kafka_timestamp DateTime64(3, 'UTC'),
    log_rank UInt64 MATERIALIZED 18446744073709551615 - toUInt64(kafka_offset),
    kind LowCardinality(String),
    rollout_id String CODEC(ZSTD(1)),
    attempt_id String CODEC(ZSTD(1)),
    attempt Int32,
    is_final Bool,
    group_id String CODEC(ZSTD(1)),
    group_size Int32,
    task_id String,
    mode LowCardinality(String),
    status LowCardinality(String),
    accepted Bool,
    reason LowCardinality(Nullable(String)),
    outcome Nullable(Float64),
    credit_rule LowCardinality(String),
    last_sequence_id Nullable(Int64),
    num_events Int64,
    missing_sequence_ids Array(Int64),
    reward_ids Array(String),
    num_transitions Int32,
    num_trainable Int32,
    started_at Nullable(DateTime64(6, 'UTC')),
    ended_at Nullable(DateTime64(6, 'UTC')),
    CONSTRAINT known_kind CHECK kind IN ('trajectory', 'closed')
)
ENGINE = ReplacingMergeTree(log_rank)
ORDER BY (rollout_id, attempt_id)
SETTINGS non_replicated_deduplication_window = 10000;

CREATE TABLE IF NOT EXISTS {database}.transitions_log
(
    kafka_partition Int32,
    kafka_offset Int64,
    kafka_timestamp DateTime64(3, 'UTC'),
    log_rank UInt64 MATERIALIZED 18446744073709551615 - toUInt64(kafka_offset),
    rollout_id String CODEC(ZSTD(1)),
    attempt_id String CODEC(ZSTD(1)),
    group_id String CODEC(ZSTD(1)),
    task_id String,
    mode LowCardinality(String),
    accepted Bool,
    attempt_reason LowCardinality(Nullable(String)),
    credit_rule LowCardinality(String),
    step Int32,
    sequence_id Int64,
    span_id String,
    agent LowCardinality(String),
    model LowCardinality(String),
    prefix_len Int32,
    prompt_token_ids Array(Int32) CODEC(ZSTD(1)),
    response_token_ids Array(Int32) CODEC(ZSTD(1)),
    response_logprobs Array(Float64) CODEC(ZSTD(1)),
    reward Nullable(Float64),
    rewards Nested(reward_id String, name LowCardinality(String), value Float64),
    is_last Bool,
    finish_reason LowCardinality(Nullable(String)),
    resource_name LowCardinality(Nullable(String)),
    resource_version Nullable(Int64),
    trainable Bool,
    reason LowCardinality(Nullable(String))
)
ENGINE = ReplacingMergeTree(log_rank)
ORDER BY (rollout_id, attempt_id, step)
SETTINGS non_replicated_deduplication_window = 10000;

CREATE TABLE IF NOT EXISTS {database}.batches_log
(
    kafka_partition Int32,
    kafka_offset Int64,
    kafka_timestamp DateTime64(3, 'UTC'),
    log_rank UInt64 MATERIALIZED 18446744073709551615 - toUInt64(kafka_offset),
    batch_id String,
    shard Int32,
    num_shards Int32,
    manifest_hash String,
    policy_version_min Nullable(Int64),
    policy_version_max Nullable(Int64),
    source_partition Int32,
    last_offset Int64,
    attempt_ids Array(String),
    group_ids Array(String),
    num_transitions Int32,
    time DateTime64(6, 'UTC')
)
ENGINE = ReplacingMergeTree(log_rank)
ORDER BY (batch_id, shard)
SETTINGS non_replicated_deduplication_window = 10000;

CREATE TABLE IF NOT EXISTS {database}.groups_log
(
    kafka_partition Int32,
    kafka_offset Int64,
    kafka_timestamp DateTime64(3, 'UTC'),
    log_rank UInt64 MATERIALIZED 18446744073709551615 - toUInt64(kafka_offset),
    group_id String CODEC(ZSTD(1)),
    task_id String,
    mode LowCardinality(String),
    group_size Int32,
    num_rollouts Int64,
    num_accepted Int64,
    status LowCardinality(String),
    reason LowCardinality(Nullable(String)),
    batch_id Nullable(String),
    policy_version_min Nullable(Int64),
    policy_version_max Nullable(Int64),
    staleness Nullable(Int64),
    outcome_mean Nullable(Float64),
    outcome_std Nullable(Float64),
    num_tokens Int64,
    source_partition Int32,
    ready_offset Int64,
    first_at DateTime64(6, 'UTC'),
    ready_at DateTime64(6, 'UTC'),
    time DateTime64(6, 'UTC'),
    CONSTRAINT known_status CHECK status IN ('batched', 'excluded')
)
ENGINE = ReplacingMergeTree(log_rank)
ORDER BY group_id
SETTINGS non_replicated_deduplication_window = 10000;

CREATE TABLE IF NOT EXISTS {database}.resources_log
(
    kafka_partition Int32,
    kafka_offset Int64,
    kafka_timestamp DateTime64(3, 'UTC'),
    log_rank UInt64 MATERIALIZED 18446744073709551615 - toUInt64(kafka_offset),
    name LowCardinality(String),
    version Int64,
    kind LowCardinality(String),
    uri String,
    content Nullable(String) CODEC(ZSTD(1)),
    manifest Map(String, String),
    trained_on Array(String),
    consumed_offsets Map(String, Int64),
    parent_version Nullable(Int64),
    metadata Map(LowCardinality(String), String),
    time DateTime64(6, 'UTC')
)
ENGINE = ReplacingMergeTree(log_rank)
ORDER BY (name, version)
SETTINGS non_replicated_deduplication_window = 10000;

CREATE TABLE IF NOT EXISTS {database}.train_steps_log
(
    kafka_partition Int32,
    kafka_offset Int64,
    kafka_timestamp DateTime64(3, 'UTC'),
    log_rank UInt64 MATERIALIZED 18446744073709551615 - toUInt64(kafka_offset),
    run_id String,
    step Int64,
    algorithm LowCardinality(String),
    policy_version Int64,
    batch_ids Array(String),
    num_trajectories Int64,
    num_tokens Int64,
    metrics Map(LowCardinality(String), Float64),
    durations_s Map(LowCardinality(String), Float64),
    time DateTime64(6, 'UTC')
)
ENGINE = ReplacingMergeTree(log_rank)
ORDER BY (run_id, step)
SETTINGS non_replicated_deduplication_window = 10000;

CREATE TABLE IF NOT EXISTS {database}.dead_letters_log
(
    kafka_partition Int32,
    kafka_offset Int64,
    kafka_timestamp DateTime64(3, 'UTC'),
    log_rank UInt64 MATERIALIZED 18446744073709551615 - toUInt64(kafka_offset),
    consumer LowCardinality(String),
    topic LowCardinality(String),
    partition Int32,
    offset Int64,
    record_time Nullable(DateTime64(6, 'UTC')),
    key_bytes Nullable(String),
    value Nullable(String) CODEC(ZSTD(1)),
    headers Nested(key String, value String),
    reason LowCardinality(String),
    detail String
)
ENGINE = ReplacingMergeTree(log_rank)
ORDER BY (topic, partition, offset, consumer)
SETTINGS non_replicated_deduplication_window = 10000;
