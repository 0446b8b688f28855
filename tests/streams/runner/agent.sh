#!/bin/sh
# An agent as a shell script: does what its task says.
task=$(cat)
case "$task" in
  *'"number"'*) echo "thinking"; echo 0.5 ;;
  *'"object"'*) echo '{"reward": 1, "rewards": {"style": 0.25}}' ;;
  *'"silent"'*) echo "no reward, this is talk" ;;
  *'"nan"'*) echo nan ;;
  *'"fail"'*) echo "the last words" >&2; exit 3 ;;
  *'"crash"'*) kill -SEGV $$ ;;
  *'"file"'*) [ "$task" = "$(cat "$HEADRACE_TASK_FILE")" ] && echo 1 ;;
  *'"environment"'*)
    echo "$HEADRACE_ROLLOUT_ID $HEADRACE_ATTEMPT_ID $HEADRACE_ATTEMPT $HEADRACE_MODE $HEADRACE_TASK_ID" >&2
    echo "$OPENAI_BASE_URL $ANTHROPIC_BASE_URL $OPENAI_API_KEY [$HEADRACE_KAFKA_BOOTSTRAP_SERVERS]" >&2
    exit 1 ;;
  *'"hang"'*)
    sh -c 'trap "" TERM; while :; do sleep 0.05; done' &
    echo "$$ $!" >> "$MARKS"
    trap '' TERM
    while :; do sleep 0.05; done ;;
  *) exit 9 ;;
esac
