#!/usr/bin/env bash
# run bench/2026-11-15-23-12-40-767630_mod.quick
# Written by Assay. `bash job.sh` runs it again by hand, as a new attempt.
set +eu
case $0 in */*) CDPATH= cd -- "${0%/*}" || exit 4 ;; esac
export ASSAY_RUN_DIR=$PWD ASSAY_RUN_ID=d25d772608af083b ASSAY_RUN_NAME=2026-11-15-23-12-40-767630_mod.quick ASSAY_STUDY=bench PYTHONUNBUFFERED=1
export -n ASSAY_DONE
_n=${ASSAY_ATTEMPT_NUMBER:-}
if [ -z "$_n" ]; then
  _hand=1 _n=1; while [ -e "lease.$_n" ] || [ -e "token.$_n" ]; do _n=$((_n + 1)); done
  export ASSAY_ATTEMPT_NUMBER=$_n ASSAY_ATTEMPT=8f61cbd9b3f3.$_n
fi
[ -n "${ASSAY_TIME:-}" ] || printf -v ASSAY_TIME '%(%Y%m%d.%H%M%S)T' -1; export ASSAY_TIME
_s=; [ "$_n" = 1 ] || _s=.$_n

_more() { eval "$(sed '1,/^#:on-demand:/d' "${0##*/}")"; }
if [ -n "${ASSAY_GATE:-}" ]; then
  IFS= read -r -N 1 -u "$ASSAY_GATE" _ || exit 0
  exec {ASSAY_GATE}<&-; unset ASSAY_GATE
else
  _more; _take_token
fi
export PYTHONFAULTHANDLER='1'
export ASSAY_BENCH_REPORT=''"${ASSAY_RUN_DIR}"'/report.jsonl'
export TEST_REPORT_FILE_PREFIX=''"${ASSAY_RUN_DIR}"'/output/proto_'
export ASSAY_BENCH_OUTPUT=''"${ASSAY_RUN_DIR}"'/output'

case "${ASSAY_DONE:-}" in *:bench:*) ;; *)
  echo "$EPOCHREALTIME bench start"
  ( cd -- @FOLDER@ && eval 'mkdir -p "${ASSAY_RUN_DIR}/output" && @PYTHON@ -m assay.bench.child run mod.quick "--output-dir=${ASSAY_RUN_DIR}/output" --data-dir=' ) > "bench$_s.log" 2>&1 < /dev/null
  _code=$?; : > "bench$_s.exit.$_code"; echo "$EPOCHREALTIME bench exit $_code"
  [ $_code = 0 ] || exit $_code ;;
esac

exit 0
#:on-demand: without a gate, and after a time limit
_find() {  # into _pids: the processes of this attempt, but those given
  local file pid line lines; _pids=
  for file in /proc/[0-9]*/environ; do
    pid=${file#/proc/}; pid=${pid%/*}
    case " $* " in *" $pid "*) continue ;; esac
    [ -O "$file" ] && mapfile -d '' -t lines < "$file" || continue
    for line in "${lines[@]}"; do [ "$line" != "ASSAY_ATTEMPT=$ASSAY_ATTEMPT" ] || _pids+=" $pid"; done
  done 2>/dev/null
}
_finish() {  # TERM to all of them, KILL to what is left after five seconds
  local round=0; _find "$@"; [ -z "$_pids" ] || kill -TERM $_pids
  while _find "$@"; [ -n "$_pids" ] && [ $((round += 1)) -le 60 ]; do
    [ $round -le 20 ] || kill -KILL $_pids; sleep 0.25
  done 2>/dev/null
}
_watch() {  # until stop.N is there, or job.sh has died and nothing of it is left
  trap '' TERM INT HUP; exec {_nap}<> <(:)
  until [ -e "stop.$_n" ]; do
    read -r -t 0.5 -u "$_nap" _; [ $? -gt 128 ] || sleep 0.5
    kill -0 $$ || { _find $BASHPID; [ -n "$_pids" ] || break; }
  done
  [ ! -e "stop.$_n" ] || { kill -TERM $$; _finish $BASHPID; }
  : > "end.$_n"
}
_leave() {  # after a stop the watcher has the last word
  [ -e "stop.$_n" ] || { kill -KILL $_watcher; : > "end.$_n"; } 2>/dev/null
}
_take_token() {
  local stat boot now
  read -r -a stat 2>/dev/null < /proc/$$/stat; read -r boot 2>/dev/null < /proc/sys/kernel/random/boot_id
  printf -v now '%(%s)T' -1
  set -C; { echo "$HOSTNAME $$ ${stat[21]:-0} ${boot:--} $now" > "token.$_n"; } 2>/dev/null || exit 0; set +C
  if [ -n "${_hand:-}" ] && sleep 0.2 && [ -e "lease.$_n" ]; then
    echo "a supervisor has just started attempt $_n" >&2; exit 4
  fi
  [ -t 1 ] || exec >> job.log 2>&1
  _watch > /dev/null 2>&1 < /dev/null &
  _watcher=$!; trap _leave EXIT
}
