-- What analysts read. FINAL leaves one row a key, the first in the log, merged or not (C11).
CREATE OR REPLACE VIEW {database}.trajectories AS
SELECT * EXCEPT (kind, kafka_partition, kafka_offset, kafka_timestamp), kafka_timestamp AS finalized_at
FROM {database}.trajectories_log FINAL
WHERE kind = 'trajectory';

CREATE OR REPLACE VIEW {database}.transitions AS
SELECT * EXCEPT (kafka_partition, kafka_offset, kafka_timestamp), kafka_timestamp AS finalized_at
FROM {database}.transitions_log FINAL;

-- A span is late if it was not part of its attempt's verdict: it came after the mark that closed the attempt,
-- or has an id beyond the last.
CREATE OR REPLACE VIEW {database}.spans AS
SELECT
    s.* EXCEPT (kafka_partition, kafka_offset, kafka_timestamp),
    (s.kafka_offset > ifNull(t.closed_at, s.kafka_offset) OR s.sequence_id > ifNull(t.last_sequence_id, s.sequence_id)) AS late,
    (toUnixTimestamp64Micro(s.end_time) - toUnixTimestamp64Micro(s.start_time)) / 1e6 AS duration_s,
    s.kafka_timestamp AS logged_at
FROM (SELECT * FROM {database}.spans_log FINAL WHERE kind != 'closed') AS s
LEFT JOIN
(
    SELECT rollout_id, attempt_id, max(last_id) AS last_sequence_id, min(closed) AS closed_at
    FROM
    (
        SELECT rollout_id, attempt_id, last_sequence_id AS last_id, CAST(NULL, 'Nullable(Int64)') AS closed
        FROM {database}.trajectories_log FINAL WHERE kind = 'trajectory'
        UNION ALL
        SELECT rollout_id, attempt_id, CAST(NULL, 'Nullable(Int64)') AS last_id, toNullable(kafka_offset) AS closed
        FROM {database}.spans_log FINAL WHERE kind = 'closed'
    )
    GROUP BY rollout_id, attempt_id
) AS t ON s.rollout_id = t.rollout_id AND s.attempt_id = t.attempt_id;

CREATE OR REPLACE VIEW {database}.generations AS
SELECT
    rollout_id, attempt_id, sequence_id, span_id, agent, model, resource_name, resource_version, finish_reason,
    length(prompt_token_ids) AS num_prompt_tokens, length(response_token_ids) AS num_response_tokens,
    prompt_tokens, completion_tokens, untrainable_reason, request, response, prompt_token_ids,
    response_token_ids, response_logprobs, sampling, choice_index, start_time, end_time, duration_s, late
FROM {database}.spans
WHERE has_generation;

CREATE OR REPLACE VIEW {database}.rewards AS
SELECT
    r.* EXCEPT (kafka_partition, kafka_offset, kafka_timestamp),
    (t.attempt_id != '' AND NOT has(t.reward_ids, r.reward_id)) AS late,
    r.kafka_timestamp AS logged_at
FROM (SELECT * FROM {database}.rewards_log FINAL WHERE kind != 'closed') AS r
LEFT JOIN (SELECT rollout_id, attempt_id, reward_ids FROM {database}.trajectories_log FINAL WHERE kind = 'trajectory') AS t
    ON r.rollout_id = t.rollout_id AND r.attempt_id = t.attempt_id;

-- Every attempt that anything is known of. The first terminal event in the log is its end (G7).
CREATE OR REPLACE VIEW {database}.attempts AS
SELECT
    e.rollout_id AS rollout_id,
    e.attempt_id AS attempt_id,
    e.attempt AS attempt,
    if(e.num_ends > 0, e.end_status, 'running') AS status,
    multiIf(t.attempt_id = '' AND e.num_ends = 0, 'open', t.attempt_id = '', 'ended', t.accepted, 'accepted', 'rejected') AS state,
    t.reason AS reason,
    t.outcome AS outcome,
    e.group_id AS group_id,
    e.task_id AS task_id,
    e.mode AS mode,
    e.runner_id AS runner_id,
    if(e.num_ends > 0, e.end_error, NULL) AS error,
    t.last_sequence_id AS last_sequence_id,
    t.num_events AS num_events,
    t.missing_sequence_ids AS missing_sequence_ids,
    t.num_transitions AS num_transitions,
    t.num_trainable AS num_trainable,
    greatest(e.num_ends, 1) - 1 AS num_late_ends,
    e.started_at AS started_at,
    e.ended_at AS ended_at,
    if(t.attempt_id = '', NULL, t.kafka_timestamp) AS finalized_at
FROM
(
    SELECT
        rollout_id,
        attempt_id,
        max(attempt) AS attempt,
        argMinIf(group_id, kafka_offset, has_origin) AS group_id,
        argMinIf(task_id, kafka_offset, has_origin) AS task_id,
        argMinIf(mode, kafka_offset, has_origin) AS mode,
        argMinIf(runner_id, kafka_offset, kind = 'started') AS runner_id,
        argMinIf(status, kafka_offset, kind = 'ended') AS end_status,
        argMinIf(tuple(error), kafka_offset, kind = 'ended').1 AS end_error,
        countIf(kind = 'ended') AS num_ends,
        minOrNullIf(time, kind = 'started') AS started_at,
        argMinOrNullIf(time, kafka_offset, kind = 'ended') AS ended_at
    FROM (SELECT *, group_id != '' AS has_origin FROM {database}.attempts_log FINAL)
    GROUP BY rollout_id, attempt_id
) AS e
LEFT JOIN (SELECT * FROM {database}.trajectories_log FINAL WHERE kind = 'trajectory') AS t
    ON e.rollout_id = t.rollout_id AND e.attempt_id = t.attempt_id;

-- What the dispatcher said of each rollout, step by step.
CREATE OR REPLACE VIEW {database}.rollout_states AS
SELECT * EXCEPT (kafka_partition, kafka_offset, kafka_timestamp), kafka_timestamp AS logged_at
FROM {database}.rollout_states_log FINAL;

-- One row a rollout, counted by distinct ids (C2), whether it was enqueued or only ran. The dispatcher's word
-- is its state, and a final one is the last (G7); before there is any, an enqueued rollout is queuing. The
-- state of one that only ran, with no dispatcher, is that of its attempts.
CREATE OR REPLACE VIEW {database}.rollouts AS
SELECT
    r.rollout_id AS rollout_id,
    multiIf(s.revision > 0, s.group_id, c.rollout_id != '', c.group_id, a.group_id) AS group_id,
    multiIf(s.revision > 0, s.task_id, c.rollout_id != '', c.task_id, a.task_id) AS task_id,
    multiIf(s.revision > 0, s.mode, c.rollout_id != '', c.mode, a.mode) AS mode,
    multiIf(s.revision > 0, s.state, a.num_attempts = 0, 'queuing', a.num_accepted > 0, 'accepted', a.num_open > 0, 'running', 'rejected') AS state,
    a.reason AS reason,
    a.num_attempts AS num_attempts,
    a.outcome AS outcome,
    if(c.rollout_id = '', NULL, c.enqueued_at) AS enqueued_at,
    a.started_at AS started_at,
    multiIf(s.revision = 0, a.ended_at, s.is_final, s.time, NULL) AS ended_at,
    (s.is_final OR (s.revision = 0 AND a.num_attempts > 0 AND (a.num_accepted > 0 OR a.num_open = 0)))::Bool AS is_final,
    s.error AS error
FROM
(
    SELECT rollout_id FROM {database}.rollout_states_log
    UNION DISTINCT
    SELECT rollout_id FROM {database}.rollouts_log WHERE kind = 'enqueue'
    UNION DISTINCT
    SELECT rollout_id FROM {database}.attempts_log
) AS r
LEFT JOIN
(
    SELECT
        rollout_id, tupleElement(said, 1) AS group_id, tupleElement(said, 2) AS task_id, tupleElement(said, 3) AS mode,
        tupleElement(said, 4) AS state, tupleElement(said, 5) AS error, tupleElement(said, 6) AS time,
        tupleElement(newest, 1) AS is_final, tupleElement(newest, 2) AS revision
    FROM
    (
        SELECT
            rollout_id,
            max(tuple(is_final, revision)) AS newest,
            argMax(tuple(group_id, task_id, toString(mode), toString(state), error, time), tuple(is_final, revision)) AS said
        FROM {database}.rollout_states_log FINAL
        GROUP BY rollout_id
    )
) AS s ON r.rollout_id = s.rollout_id
LEFT JOIN
(
    SELECT
        rollout_id, tupleElement(asked, 1) AS group_id, tupleElement(asked, 2) AS task_id, tupleElement(asked, 3) AS mode, enqueued_at
    FROM
    (
        SELECT
            rollout_id,
            argMin(tuple(group_id, task_id, toString(mode)), kafka_offset) AS asked,
            min(time) AS enqueued_at
        FROM {database}.rollouts_log FINAL
        WHERE kind = 'enqueue'
        GROUP BY rollout_id
    )
) AS c ON r.rollout_id = c.rollout_id
LEFT JOIN
(
    SELECT
        rollout_id, tupleElement(ran, 1) AS group_id, tupleElement(ran, 2) AS task_id, tupleElement(ran, 3) AS mode,
        num_attempts, num_accepted, num_open, if(num_accepted > 0, NULL, tupleElement(last, 1)) AS reason,
        outcome, started_at, ended_at
    FROM
    (
        SELECT
            rollout_id,
            argMax(tuple(group_id, task_id, toString(mode)), tuple(group_id != '', attempt)) AS ran,
            argMax(tuple(CAST(reason, 'Nullable(String)')), attempt) AS last,
            count() AS num_attempts,
            countIf(state = 'accepted') AS num_accepted,
            countIf(state IN ('open', 'ended')) AS num_open,
            anyIf(outcome, state = 'accepted') AS outcome,
            min(started_at) AS started_at,
            max(ended_at) AS ended_at
        FROM {database}.attempts
        GROUP BY rollout_id
    )
) AS a ON r.rollout_id = a.rollout_id;

-- One row a bad record, however many consumers met it. Keys and values are bytes.
CREATE OR REPLACE VIEW {database}.dead_letters AS
SELECT
    topic, partition, offset,
    groupUniqArray(toString(consumer)) AS consumers,
    argMin(reason, kafka_offset) AS reason,
    argMin(detail, kafka_offset) AS detail,
    any(key_bytes) AS key_bytes,
    any(value) AS value,
    any(record_time) AS record_time,
    min(kafka_timestamp) AS dead_at
FROM {database}.dead_letters_log FINAL
GROUP BY topic, partition, offset;

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
    min(time) AS time
FROM {database}.batches_log FINAL
GROUP BY batch_id;

-- Every group's fate. The first of a group counts.
CREATE OR REPLACE VIEW {database}.groups AS
SELECT * EXCEPT (kafka_partition, kafka_offset, kafka_timestamp) FROM {database}.groups_log FINAL;

CREATE OR REPLACE VIEW {database}.resources AS
SELECT * EXCEPT (kafka_partition, kafka_offset, kafka_timestamp) FROM {database}.resources_log FINAL;

CREATE OR REPLACE VIEW {database}.train_steps AS
SELECT * EXCEPT (kafka_partition, kafka_offset, kafka_timestamp) FROM {database}.train_steps_log FINAL;

-- Analyses.
CREATE OR REPLACE VIEW {database}.attempts_by_outcome AS
SELECT status, state, ifNull(reason, '') AS reason, count() AS num_attempts, avg(outcome) AS mean_outcome
FROM {database}.attempts
GROUP BY status, state, reason
ORDER BY num_attempts DESC;

CREATE OR REPLACE VIEW {database}.reward_by_version AS
SELECT
    resource_name, resource_version,
    uniqExact(attempt_id) AS num_attempts,
    count() AS num_transitions,
    avg(reward) AS mean_reward,
    stddevPop(reward) AS std_reward,
    sum(length(response_token_ids)) AS num_response_tokens
FROM {database}.transitions
WHERE accepted
GROUP BY resource_name, resource_version
ORDER BY resource_name, resource_version;

-- One row a group that has a trajectory, with its fate once that is decided.
CREATE OR REPLACE VIEW {database}.group_statistics AS
SELECT
    t.group_id AS group_id, t.group_size AS group_size, t.num_rollouts AS num_rollouts, t.num_accepted AS num_accepted,
    t.mean_outcome AS mean_outcome, t.std_outcome AS std_outcome,
    if(g.group_id = '', 'open', g.status) AS state,
    g.reason AS reason,
    g.batch_id AS batch_id,
    g.staleness AS staleness,
    if(g.group_id = '', NULL, dateDiff('microsecond', g.first_at, g.ready_at) / 1e6) AS seconds_to_ready
FROM
(
    SELECT
        group_id,
        any(group_size) AS group_size,
        uniqExact(rollout_id) AS num_rollouts,
        uniqExactIf(rollout_id, accepted) AS num_accepted,
        avgIf(outcome, accepted) AS mean_outcome,
        stddevPopIf(outcome, accepted) AS std_outcome
    FROM {database}.trajectories
    GROUP BY group_id
) AS t
LEFT JOIN {database}.groups AS g ON t.group_id = g.group_id;

CREATE OR REPLACE VIEW {database}.groups_by_fate AS
SELECT mode, status, ifNull(reason, '') AS reason, count() AS num_groups, sum(num_rollouts) AS num_rollouts
FROM {database}.groups
GROUP BY mode, status, reason
ORDER BY num_groups DESC;

-- One row a batch: what is in it, how well it did, and the versions that were trained on it.
CREATE OR REPLACE VIEW {database}.batch_statistics AS
SELECT
    b.batch_id AS batch_id, b.time AS time, length(b.group_ids) AS num_groups, length(b.attempt_ids) AS num_rollouts,
    b.num_transitions AS num_transitions, g.num_tokens AS num_tokens, g.mean_outcome AS mean_outcome,
    b.policy_version_min AS policy_version_min, b.policy_version_max AS policy_version_max,
    g.max_staleness AS max_staleness, v.versions AS trained_versions
FROM {database}.batches AS b
LEFT JOIN
(
    SELECT
        assumeNotNull(batch_id) AS batch_id,
        sum(num_tokens) AS num_tokens,
        sumIf(outcome_mean * num_accepted, isNotNull(outcome_mean)) / nullIf(sumIf(num_accepted, isNotNull(outcome_mean)), 0) AS mean_outcome,
        max(staleness) AS max_staleness
    FROM {database}.groups
    WHERE status = 'batched'
    GROUP BY batch_id
) AS g ON b.batch_id = g.batch_id
LEFT JOIN
(
    SELECT batch_id, groupUniqArray(concat(name, '@', toString(version))) AS versions
    FROM (SELECT name, version, arrayJoin(trained_on) AS batch_id FROM {database}.resources)
    GROUP BY batch_id
) AS v ON b.batch_id = v.batch_id;

-- How well each version did on tasks that never train.
CREATE OR REPLACE VIEW {database}.validation_by_version AS
SELECT
    mode, policy_version_max AS resource_version,
    count() AS num_groups,
    sum(g.num_rollouts) AS num_rollouts,
    sum(g.num_accepted) AS num_accepted,
    sumIf(g.outcome_mean * g.num_accepted, isNotNull(g.outcome_mean)) / nullIf(sumIf(g.num_accepted, isNotNull(g.outcome_mean)), 0) AS mean_outcome
FROM {database}.groups AS g
WHERE mode != 'train'
GROUP BY mode, resource_version
ORDER BY mode, resource_version;

CREATE OR REPLACE VIEW {database}.token_throughput AS
SELECT
    toStartOfMinute(start_time) AS minute, model,
    count() AS num_calls,
    sum(num_prompt_tokens) AS num_prompt_tokens,
    sum(num_response_tokens) AS num_response_tokens,
    quantile(0.5)(duration_s) AS p50_s,
    quantile(0.99)(duration_s) AS p99_s
FROM {database}.generations
GROUP BY minute, model
ORDER BY minute;

-- Weights version → batch → transition → span → prompt version, in one row each.
CREATE OR REPLACE VIEW {database}.lineage AS
SELECT
    trained.name AS resource_name, trained.version AS resource_version, trained.batch_id AS batch_id,
    step_of.group_id AS group_id, step_of.rollout_id AS rollout_id, step_of.attempt_id AS attempt_id,
    step_of.step AS step, step_of.sequence_id AS sequence_id, span_of.span_id AS span_id,
    step_of.resource_version AS behaviour_version, step_of.reward AS reward,
    mapFilter((name, version) -> has((SELECT groupUniqArray(toString(name)) FROM {database}.resources WHERE kind = 'prompt'), name), origin.resources) AS prompt_versions
FROM (SELECT name, version, arrayJoin(trained_on) AS batch_id FROM {database}.resources) AS trained
INNER JOIN (SELECT batch_id, arrayJoin(attempt_ids) AS attempt_id FROM {database}.batches) AS member
    ON trained.batch_id = member.batch_id
INNER JOIN {database}.transitions AS step_of ON step_of.attempt_id = member.attempt_id
LEFT JOIN (SELECT rollout_id, attempt_id, sequence_id, span_id FROM {database}.spans_log FINAL) AS span_of
    ON span_of.rollout_id = step_of.rollout_id AND span_of.attempt_id = step_of.attempt_id
    AND span_of.sequence_id = step_of.sequence_id AND span_of.span_id = step_of.span_id
LEFT JOIN
(
    SELECT rollout_id, attempt_id, argMin(CAST(resources, 'Map(String, Int64)'), kafka_offset) AS resources
    FROM {database}.attempts_log FINAL
    WHERE kind = 'started'
    GROUP BY rollout_id, attempt_id
) AS origin ON origin.rollout_id = step_of.rollout_id AND origin.attempt_id = step_of.attempt_id;
