#!/usr/bin/env bash
# All checks that need a GPU, in under ten minutes: bf16, NCCL, and Transformer Engine where it is installed.
# Usage: tests/gpu/run.sh [python]
set -euo pipefail
cd "$(dirname "$0")/../.."
python="${1:-python}"
gpus="$("$python" -c 'import torch; print(torch.cuda.device_count())')"
if [ "$gpus" -eq 0 ]; then
  echo "no GPU: torch sees none" >&2
  exit 1
fi
tests=(tests/gpu/test_policy.py)
if [ "$gpus" -ge 2 ]; then
  tests+=(tests/gpu/test_two_gpus.py)
else
  echo "one GPU: models spread over two are not checked"
fi
"$python" -c 'import transformer_engine' 2>/dev/null || echo "no Transformer Engine: Megatron's own layers are checked"
exec "$python" -m pytest -q -m gpu --timeout 540 "${tests[@]}"
