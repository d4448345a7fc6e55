#!/usr/bin/env bash
# run model/relu_ort_check_2026-11-15-23-12-43-867242
# Written by Assay. `bash job.sh` runs it again by hand, as a new attempt.
set +eu
case $0 in */*) CDPATH= cd -- "${0%/*}" || exit 4 ;; esac
export ASSAY_RUN_DIR=$PWD ASSAY_RUN_ID=2beca31b5ce16b53 ASSAY_RUN_NAME=relu_ort_check_2026-11-15-23-12-43-867242 ASSAY_STUDY=model PYTHONUNBUFFERED=1
export -n ASSAY_DONE
_n=${ASSAY_ATTEMPT_NUMBER:-}
if [ -z "$_n" ]; then
  _hand=1 _n=1; while [ -e "lease.$_n" ] || [ -e "token.$_n" ]; do _n=$((_n + 1)); done
  export ASSAY_ATTEMPT_NUMBER=$_n ASSAY_ATTEMPT=d5e0c5fbdf3b.$_n
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

case "${ASSAY_DONE:-}" in *:model:*) ;; *)
  echo "$EPOCHREALTIME model start"
  ( cd -- @FOLDER@ && eval '@PYTHON@ -m assay.flows.model.child "${ASSAY_RUN_DIR}" '\''{"model": "@FOLDER@/relu.onnx", "reference": {"name": "ort", "backend": "ort", "options": {}, "compile_flags": [], "run_flags": []}, "target": {"name": "ort", "backend": "ort", "options": {}, "compile_flags": [], "run_flags": []}, "voter": {"name": "reference", "backend": "reference", "options": {}, "compile_flags": [], "run_flags": []}, "goal": "check", "inputs": {"samples": 1, "seed": 1234, "ranges": {}, "dims": {}, "files": [], "function": null, "most": null}, "tolerances": {"model": {"abs": null, "rel": null, "ulp": null, "int_abs": null, "int_share": null, "allowed_wrong": 0.0, "min_cosine": null, "min_sqnr_db": null, "top_k": null, "allow_constant": false, "check_dtype": true, "quantized": false}, "by_op": {}, "by_tensor": {}}, "groups": [["Conv", "Clip"]], "only": [], "limits": {"import_s": 300.0, "compile_s": 300.0, "run_s": 240.0, "memory_bytes": null}, "repeats": 1, "recompute": false, "explain": false, "ir_dir": null, "compile_profile_dir": null, "run_profile_dir": null, "store": "@FOLDER@/artifacts", "output": "", "folder": "@FOLDER@", "manner": "--reference ort --target ort", "origin": "", "notes": []}'\''' ) > "model$_s.log" 2>&1 < /dev/null
  _code=$?; : > "model$_s.exit.$_code"; echo "$EPOCHREALTIME model exit $_code"
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
