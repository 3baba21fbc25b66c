#!/usr/bin/env bash
# litebert-base-en from text: every command, in order. A command that was stopped goes on when the script is run again.
#
#   bash examples/builtin/make.sh corpus/ tasks/ runs/builtin
#
# corpus/ holds text (a paragraph per line, a blank line between documents), tasks/ the evaluation sets whose texts must not be
# learned. Wants a GPU of the H100's kind for about fifty minutes, and `pip install '.[train]'`.
set -euo pipefail
corpus=$1 tasks=$2 out=$3
here=$(dirname "$0")

# pretrain FOLDER FLAGS...: once, or where it was stopped
pretrain() {
  local folder=$1
  shift
  [ -e "$folder/config.json" ] && return
  [ -e "$folder/checkpoints/latest" ] && set -- "$@" --resume
  litebert pretrain --data "$out/shards" --precision fp8 --out "$folder" "$@"
}

mkdir -p "$out"
[ -e "$out/tokenizer/tokenizer.json" ] ||
  litebert tokenizer --input "$corpus" --vocab-size 30000 --no-lowercase --no-strip-accents --out "$out/tokenizer"
[ -e "$out/evaluation.txt" ] || python "$here/evaluation_texts.py" "$tasks" --out "$out/evaluation.txt"
[ -e "$out/shards/index.json" ] ||
  litebert prepare --input "$corpus" --tokenizer "$out/tokenizer" --exclude "$out/evaluation.txt" --out "$out/shards"

# short sequences first, few passes first, the rate high to the end
pretrain "$out/short" --steps 12670 --batch-size 1024 --depth-ramp 1/4:0.533,1/2:0.959 --warmup 0.02 --decay-share 0 \
  --validate-every 500 --validation-rows 2048
# long sequences, the rate lower (2.5e-3 diverges here), and falling to zero
pretrain "$out/long" --model "$out/short" --length 512 --batch-size 256 --steps 5300 --learning-rate 8e-4 --warmup 0.03 \
  --decay-share 0.6 --seed 4
# the same again with other masks, and again
pretrain "$out/longer" --model "$out/long" --length 512 --batch-size 256 --steps 5600 --learning-rate 8e-4 --warmup 0.03 \
  --decay-share 0.6 --seed 5
pretrain "$out/longest" --model "$out/longer" --length 512 --batch-size 256 --steps 2400 --learning-rate 6e-4 --warmup 0.05 \
  --decay-share 0.8 --seed 6

# vectors of sentences
[ -e "$out/litebert-base-en/config.json" ] ||
  python "$here/embeddings.py" --model "$out/longest" --data "$out/shards" --sts "$tasks/glue/STS-B" --half \
    --out "$out/litebert-base-en"
