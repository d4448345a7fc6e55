# What is done on a host that is reached by ssh: bash -c "$(cat remote.sh)" assay ROOT VERB [ARGUMENTS]
# ROOT/runs/UID is a run's folder, ROOT/code/HASH a copy of the code that runs are given copies of.
# Fields end with a zero byte in both directions: names may hold anything else.
set +eu; export LC_ALL=C
root=$1 verb=$2; shift 2
case $root in '~') root=$HOME ;; '~/'*) root=$HOME/${root#'~/'} ;; /*) ;; *) root=$HOME/$root ;; esac

alive() {  # PID START BOOT: after the set, field k of /proc/PID/stat is argument k
  local stat boot=-
  read -r boot < /proc/sys/kernel/random/boot_id; [ "$3" = "$boot" ] || return 1
  IFS= read -r stat < "/proc/$1/stat" || return 1
  set -- "$1" "$2" ${stat##*) }; [ "${22}" = "$2" ] && [ "$3" != Z ]
} 2>/dev/null
take_token() {  # a job that has not begun by now never will
  { set -C; echo "- 0 0 - 0" > "token.$1"; } 2>/dev/null; local code=$?; set +C; return $code
}
judge() {  # of attempt N, in the run's folder
  local host pid start boot _
  if [ -e "end.$1" ]; then echo ended
  elif [ -s "token.$1" ]; then
    read -r host pid start boot _ < "token.$1"
    if [ "$host" = - ]; then echo never
    elif alive "$pid" "$start" "$boot"; then echo running
    elif [ -e "end.$1" ]; then echo ended
    else echo dead; fi
  elif [ ! -e "token.$1" ] && read -r pid start boot 2>/dev/null < ".start.$1" && ! alive "$pid" "$start" "$boot"; then
    if take_token "$1"; then echo never; else echo running; fi
  elif [ -e "token.$1" ]; then echo running
  else echo waiting; fi
}
emit() {  # NAME OFFSET SIZE: as many bytes as announced, also where the file shrinks meanwhile
  printf 'F\0%s\0%s\0%s\0' "$1" "$2" $(($3 - $2))
  [ "$3" = "$2" ] || { tail -c "+$(($2 + 1))" -- "$1"; head -c $(($3 - $2)) /dev/zero; } 2>/dev/null | head -c $(($3 - $2))
}
follow() {  # what grows, from where it was read to
  local name files=() sizes i
  shopt -s nullglob
  for name in *.log log.* *.jsonl *.csv metrics/*.jsonl *.timeout *.exit.*; do
    [ ! -f "$name" ] || [ -L "$name" ] || files+=("$name")
  done
  [ ${#files[@]} -gt 0 ] || return
  sizes=($(stat -c %s -- "${files[@]}" 2>/dev/null))
  [ ${#sizes[@]} = ${#files[@]} ] || return  # one of them has just been removed: next time
  for i in "${!files[@]}"; do
    name=${files[i]}
    [ "${known[$name]-}" != "${sizes[i]}" ] || continue
    [ "${known[$name]:-0}" -le "${sizes[i]}" ] || known[$name]=0
    emit "$name" "${known[$name]:-0}" "${sizes[i]}"
  done
}
of_session() {  # PID: everything in the session that it opened
  local file stat; _session=
  for file in /proc/[0-9]*/stat; do
    IFS= read -r stat < "$file" || continue
    set -- "$1" x ${stat##*) }; [ "$6" != "$1" ] || [ "$3" = Z ] || { file=${file#/proc/}; _session+=" ${file%/*}"; }
  done 2>/dev/null
}

case $verb in
hello)
  for program in tar cp mv stat head tail setsid; do
    command -v $program > /dev/null || { echo "$program is not installed there" >&2; exit 6; }
  done
  mkdir -p "$root/runs" "$root/code" && chmod 700 "$root" && [ -w "$root/runs" ] || exit 6
  echo hello ;;
has)  # HASH
  [ ! -d "$root/code/$1" ] || { touch "$root/code/$1"; echo there; } ;;
stage)  # UID N HASH VARIABLE=VALUE...; the files are on stdin, as a tar that ends with .whole
  uid=$1 n=$2 hash=$3; shift 3; dir=runs/$uid new=.new-$uid.$$
  mkdir -p "$root/runs" "$root/code" && chmod 700 "$root" && cd "$root" || exit 6
  [ ! -e "$dir/token.$n" ] && [ ! -e "$dir/.start.$n" ] || { echo started; exit 0; }
  rm -rf .old-*; find code -mindepth 1 -maxdepth 1 -mtime +30 -exec rm -rf {} + 2>/dev/null
  find . -maxdepth 1 -name '.new-*' -mtime +0 -exec rm -rf {} + 2>/dev/null
  trap 'cd "$root"; rm -rf "$new"' EXIT
  mkdir -m 700 "$new" && tar -x -p -o -f - -C "$new" || exit 6
  [ -e "$new/.whole" ] || { echo "the files did not arrive" >&2; exit 255; }
  [ ! -d "$new/code" ] || mv -T "$new/code" "code/$hash" 2>/dev/null
  if [ "$hash" != - ] && { [ ! -d "$dir/code" ] || [ "$(cat "$dir/.code" 2>/dev/null)" != "$hash" ]; }; then
    rm -rf "$dir/code"; cp -a "code/$hash" "$new/run/code" || exit 6
  fi
  printf '%s' "$hash" > "$new/run/.code" || exit 6
  if [ -d "$dir" ]; then cp -a "$new/run/." "$dir/" || exit 6
  else mv -T "$new/run" "$dir" || exit 6; fi
  cd "$dir" || exit 6
  setsid env "$@" bash job.sh < /dev/null >> job.log 2>&1 &
  IFS= read -r stat 2>/dev/null < "/proc/$!/stat"; read -r boot < /proc/sys/kernel/random/boot_id
  set -- x x ${stat##*) }; echo "$! ${22:-0} $boot" > ".start.$n"
  echo started ;;
look)  # on stdin, for each run: UID N OWNERLESS COUNT, then COUNT times NAME OFFSET
  [ -d "$root/runs" ] || { echo "$root is not there" >&2; exit 7; }
  while IFS= read -r -d '' uid && IFS= read -r -d '' n && IFS= read -r -d '' ownerless && IFS= read -r -d '' count; do
    unset known; declare -A known=()
    for ((; count > 0; count--)); do IFS= read -r -d '' name; IFS= read -r -d '' offset; known[$name]=$offset; done
    [ "$ownerless" = 0 ] || mkdir -p "$root/runs/$uid"  # what its dead owner has sent may still be on its way
    cd "$root/runs/$uid" 2>/dev/null || { printf 'S\0%s\0%s\0missing\0\0' "$uid" "$n"; continue; }
    state=$(judge "$n")
    if [ "$state" = waiting ] && [ "$ownerless" = 1 ]; then take_token "$n" && state=never; fi
    token=; [ ! -e "token.$n" ] || read -r token < "token.$n"
    printf 'S\0%s\0%s\0%s\0%s\0' "$uid" "$n" "$state" "$token"
    follow
  done
  printf 'Z\0' ;;
list)  # UID TAG: files and links but the code, with sizes and hashes; and what still runs
  cd "$root/runs/$1" || exit 7
  ASSAY_ATTEMPT=$2
  find . \( -path ./code -o -path './code.*' \) -type d -prune -o \( -type f -o -type l \) -print0 |
    while IFS= read -r -d '' name; do
      if [ -L "$name" ]; then printf 'L\0%s\0%s\0' "${name#./}" "$(readlink -- "$name")"; continue; fi
      sum=$(sha256sum < "$name" 2>/dev/null)
      printf 'H\0%s\0%s\0%s\0' "${name#./}" "$(stat -c %s -- "$name")" "${sum%% *}"
    done
  _find $$ $BASHPID
  for pid in $_pids; do read -r comm 2>/dev/null < "/proc/$pid/comm" && printf 'P\0%s %s\0' "$pid" "$comm"; done
  printf 'Z\0' ;;
send)  # UID; on stdin, for each file: NAME OFFSET
  cd "$root/runs/$1" || exit 7
  while IFS= read -r -d '' name && IFS= read -r -d '' offset; do
    size=$(stat -c %s -- "$name") && [ "$size" -ge "$offset" ] && emit "$name" "$offset" "$size"
  done
  printf 'Z\0' ;;
cancel)  # ROUNDS of a tenth of a second before KILL, then for each job UID N TAG
  rounds=$1; shift; jobs=("$@") told=' '
  gather() {
    local i; all=
    for ((i = 0; i < ${#jobs[@]}; i += 3)); do
      leader=; cd "$root/runs/${jobs[i]}" 2>/dev/null && read -r _ pid start boot _ 2>/dev/null < "token.${jobs[i + 1]}" &&
        alive "$pid" "$start" "$boot" && leader=$pid
      _session=; [ -z "$leader" ] || of_session "$leader"
      ASSAY_ATTEMPT=${jobs[i + 2]}; _pids=; [ -z "$ASSAY_ATTEMPT" ] || _find $$ $BASHPID
      all+=" $leader $_session $_pids"
    done
    all=${all//  / }; [ -n "${all// /}" ]
  }
  for ((i = 0; i < ${#jobs[@]}; i += 3)); do
    cd "$root/runs/${jobs[i]}" 2>/dev/null && { take_token "${jobs[i + 1]}"; : >> "stop.${jobs[i + 1]}"; }
  done
  for ((round = 0; ; round++)); do
    gather || gather || break
    [ $round -le $((rounds + 100)) ] || { echo "cannot be ended:$all" >&2; exit 8; }
    if [ $round -ge "$rounds" ] && [ $round -gt 0 ]; then kill -KILL $all
    else for pid in $all; do case $told in *" $pid "*) ;; *) kill -TERM "$pid"; told+="$pid " ;; esac; done; fi 2>/dev/null
    sleep 0.1
  done
  for ((i = 0; i < ${#jobs[@]}; i += 3)); do
    cd "$root/runs/${jobs[i]}" 2>/dev/null && : > "end.${jobs[i + 1]}"
  done
  echo ended ;;
remove)  # UID: at once gone, or not at all
  cd "$root" || exit 7
  [ ! -d "runs/$1" ] || mv -T "runs/$1" ".old-$1.$$" && rm -rf ".old-$1.$$" ;;
esac
