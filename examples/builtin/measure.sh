#!/usr/bin/env bash
# What a pre-trained English model is worth: on documents that were held out, and after fine-tuning beside the same model
# without training, five seeds each. Puts two files of questions under tasks/qa/squad.
#
#   bash examples/builtin/measure.sh litebert-base-en shards/ tasks/ runs/measured
set -euo pipefail
model=$1 shards=$2 tasks=$3 out=$4
here=$(dirname "$0")
sets="sst-2 cola mrpc rte sts-b conll2003"

mkdir -p "$out"
python "$here/held_out.py" --model "$model" --data "$shards" --text "$out/held-out.txt"
litebert evaluate --model "$model" --data "$out/held-out.txt" --errors 0

python "$here/squad.py" "$tasks"/qa/squadshifts/*.json --out "$tasks/qa/squad/train.json"
python "$here/squad.py" "$tasks"/qa/squad2_dev_half/*.json --out "$tasks/qa/squad/dev.json"
# shellcheck disable=SC2086
python "$here/../../bench/tasks.py" --model "$model" --tasks "$tasks" --only $sets --rates 5e-5 1e-4 2e-4 3e-4 --seeds 5 --random 5 \
  --jobs 10 --out "$out/tasks"
python "$here/../../bench/tasks.py" --model "$model" --tasks "$tasks" --only squad-shifts --epochs 2 --rates 1e-4 2e-4 \
  --seeds 5 --random 5 --jobs 5 --out "$out/squad"
