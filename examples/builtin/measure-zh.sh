#!/usr/bin/env bash
# What a pre-trained Chinese model is worth: on documents that were held out, and after fine-tuning beside the same model
# without training, five seeds each.
#
#   bash examples/builtin/measure-zh.sh litebert-small-zh shards/ tasks/ runs/measured-zh
set -euo pipefail
model=$1 shards=$2 tasks=$3 out=$4
here=$(dirname "$0")

mkdir -p "$out"
python "$here/held_out.py" --model "$model" --data "$shards" --length 256 --text "$out/held-out.txt"
litebert evaluate --model "$model" --data "$out/held-out.txt" --errors 0
python "$here/../../bench/tasks.py" --chinese-model "$model" --tasks "$tasks" --only chnsenticorp lcqmc cluener \
  --rates 1e-4 2e-4 --seeds 5 --random 5 --jobs 10 --out "$out/tasks"
python "$here/../../bench/tasks.py" --chinese-model "$model" --tasks "$tasks" --only afqmc --rates 3e-5 1e-4 \
  --seeds 5 --random 5 --jobs 10 --out "$out/afqmc"
