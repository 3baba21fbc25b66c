#!/usr/bin/env bash
# litebert-small-zh from text: every command, in order. A command that was stopped goes on when the script is run again.
#
#   bash examples/builtin/make-zh.sh zh.txt tasks/zh/ runs/builtin-zh
#
# zh.txt is Chinese text (a paragraph per line, a blank line between documents), tasks/zh/ holds the evaluation sets whose texts
# must not be learned. Wants a GPU of the H100's kind for some minutes, and `pip install '.[train,chinese]'`.
set -euo pipefail
text=$1 tasks=$2 out=$3
here=$(dirname "$0")

mkdir -p "$out"
# Wikipedia mixes both scripts; OpenCC (pip install opencc) makes all of it simplified
if [ ! -e "$out/simplified.txt" ]; then
  opencc -c t2s < "$text" > "$out/simplified.part"
  mv "$out/simplified.part" "$out/simplified.txt"
fi

# the other way to cut Chinese, a character at a time: --kind wordpiece
[ -e "$out/tokenizer/tokenizer.json" ] ||
  litebert tokenizer --input "$out/simplified.txt" --kind unigram --vocab-size 10000 --out "$out/tokenizer"
[ -e "$out/evaluation.txt" ] || python "$here/evaluation_texts.py" "$tasks" --out "$out/evaluation.txt"
[ -e "$out/shards/index.json" ] ||
  litebert prepare --input "$out/simplified.txt" --tokenizer "$out/tokenizer" --words jieba \
    --exclude "$out/evaluation.txt" --out "$out/shards"

# whole words are hidden: of most, one character gives the other away
if [ ! -e "$out/pretrained/config.json" ]; then
  set --
  [ -e "$out/pretrained/checkpoints/latest" ] && set -- --resume
  litebert pretrain --data "$out/shards" --preset base --hidden-size 512 --length 256 --batch-size 256 --mask word \
    --precision fp8 --steps 5500 --out "$out/pretrained" "$@"
fi

# in bfloat16, a half of the size
[ -e "$out/litebert-small-zh/config.json" ] ||
  python -c 'import sys, litebert; litebert.load(sys.argv[1]).save(sys.argv[2], half=True)' "$out/pretrained" \
    "$out/litebert-small-zh"
