# The program on a host that is reached by ssh: bash executes it with the argument ROOT; it reads requests from stdin.
# All files are in ROOT/.assay-jobs, which the program makes with a marker file: no other folder is changed, and only
# names that the program makes are removed. runs/UID is a run's folder, code/HASH the code that is copied for runs,
# never/UID.N marks for a day an attempt that may not begin on this host any more.
# A request is a count and as many fields; fields end with a zero byte in both directions, since no name contains one.
# An empty field instead of a count ends the wait of `look`. Each request runs in a subshell of its own.
set +eu; export LC_ALL=C
given=$1
case $given in '~') given=$HOME ;; '~/'*) given=$HOME/${given#'~/'} ;; /*) ;; *) given=$HOME/$given ;; esac
root=$given/.assay-jobs marker=made-by-assay
uids='[0-9a-f]{12}' hashes='[0-9a-f]{32}'
exec 8<> <(:)  # descriptor 8 never has data: a read from it with a time limit sleeps without a process

nap() { read -r -t "$1" -u 8 _; [ $? -gt 128 ] || sleep "$1"; }
say() { printf '%s\0' "$@"; }
refuse() { message=$2; exit "$1"; }
alive() {  # PID START BOOT: after `set`, field k of /proc/PID/stat is argument k
  local stat boot=-
  read -r boot < /proc/sys/kernel/random/boot_id; [ "$3" = "$boot" ] || return 1
  IFS= read -r stat < "/proc/$1/stat" || return 1
  set -- "$1" "$2" ${stat##*) }; [ "${22}" = "$2" ] && [ "$3" != Z ]
} 2>/dev/null
take_token() {  # N: take the token of a job that has not begun, which can then never begin
  { set -C; echo "- 0 0 - 0" > "token.$1"; } 2>/dev/null; local code=$?; set +C; return $code
}
is_starting() { local pid start boot; read -r pid start boot 2>/dev/null < ".start.$1" && alive "$pid" "$start" "$boot"; }
judge() {  # N: set `state` to the state of attempt N, in the run's folder
  local host= pid start boot _
  [ ! -s "token.$1" ] || read -r host pid start boot _ < "token.$1"
  if [ "$host" = - ]; then state=never
  elif [ -e "end.$1" ]; then state=ended
  elif [ -n "$host" ]; then
    if alive "$pid" "$start" "$boot"; then state=running
    elif [ -e "end.$1" ]; then state=ended
    else state=dead; fi
  elif [ ! -e "token.$1" ] && [ -s ".start.$1" ] && ! is_starting "$1"; then
    if take_token "$1"; then state=never; else state=running; fi
  elif [ -e "token.$1" ]; then state=running  # the token is being written, or cannot be: the disk is full
    is_starting "$1" || { nap 0.2; [ -s "token.$1" ] || is_starting "$1" || state=dead; }
  else state=waiting; fi
}
emit() {  # NAME OFFSET SIZE: write as many bytes as announced, even if the file shrinks during that
  say F "$1" "$2" $(($3 - $2))
  [ "$3" = "$2" ] || { tail -c "+$(($2 + 1))" -- "$1"; head -c $(($3 - $2)) /dev/zero; } 2>/dev/null | head -c $(($3 - $2))
}
follow() {  # write the new bytes of growing files
  local name files=() sizes i
  shopt -s nullglob
  for name in *.log log.* *.jsonl *.csv metrics/*.jsonl *.timeout *.exit.*; do
    [ ! -f "$name" ] || [ -L "$name" ] || files+=("$name")
  done
  [ ${#files[@]} -gt 0 ] || return
  sizes=($(stat -c %s -- "${files[@]}" 2>/dev/null))
  [ ${#sizes[@]} = ${#files[@]} ] || return  # a file has just been removed: the next request reads the files
  for i in "${!files[@]}"; do
    name=${files[i]}
    [ "${known[$name]-}" != "${sizes[i]}" ] || continue
    [ "${known[$name]:-0}" -le "${sizes[i]}" ] || known[$name]=0
    emit "$name" "${known[$name]:-0}" "${sizes[i]}"
  done
}
find_tagged() {  # TAG: set `tagged` to the processes of an attempt
  local file; tagged=
  [ -n "$1" ] || return 0
  for file in $(grep -lzxF -e "ASSAY_ATTEMPT=$1" /proc/[0-9]*/environ 2>/dev/null); do
    file=${file#/proc/}; tagged+=" ${file%/*}"
  done
}
list() {  # TAG: list files, links and empty folders except the code, with sizes and hashes, and running processes
  local name pid round not_code=(\( -path ./code -o -path './code.*' \) -type d -prune -o)
  for round in 1 2 3 4 5; do  # ended processes may need a moment to disappear
    find_tagged "$1"; [ -n "$tagged" ] || break; nap 0.02
  done
  for pid in $tagged; do read -r name 2>/dev/null < "/proc/$pid/comm" && say P "$pid $name"; done
  say N; rm -f .now; : > .now  # times of files are compared with that of .now, which is by the same clock
  find . "${not_code[@]}" -type d ! \( -readable -executable \) -printf 'u\0%P\0%s\0%T@\0\0' -prune -o \
    \( -type f -o -type l -o -type d -empty \) -printf '%y\0%P\0%s\0%T@\0%l\0' 2>/dev/null; say ''
  find . "${not_code[@]}" -type f -exec sha256sum -z -- {} + 2>/dev/null; say ''
}
of_session() {  # PID: set `members` to the processes of the session that PID leads
  local file stat; members=
  for file in /proc/[0-9]*/stat; do
    IFS= read -r stat < "$file" || continue
    set -- "$1" x ${stat##*) }; [ "$6" != "$1" ] || [ "$3" = Z ] || { file=${file#/proc/}; members+=" ${file%/*}"; }
  done 2>/dev/null
}
chunks() { local size; while IFS= read -r -d '' size && [ "$size" -gt 0 ]; do head -c "$size"; done; }

is_ours() { [ -f "$root/$marker" ] && [ -O "$root" ]; }
make_root() {  # make the root with its marker, or not at all; an existing root is not changed
  local new=$root.$BASHPID.$RANDOM
  [ -d "$given" ] || message=$(mkdir -p -m 700 "$given" 2>&1) || return
  message=$(mkdir -m 700 "$new" 2>&1) || return
  message=$({ echo 'Assay made this folder, and removes what it no longer needs in it.' > "$new/$marker"; } 2>&1) &&
    mv -n -T "$new" "$root"
  [ ! -d "$new" ] || { rm -f "$new/$marker"; rmdir "$new"; }  # another process was first, or the disk is full
  [ -e "$root" ]
}
remove_old() {  # FOLDER PATTERN TEST...: remove the folders whose names match PATTERN as a whole
  local folder=$1 pattern=$2; shift 2
  find "$folder" -mindepth 1 -maxdepth 1 -type d -regextype posix-extended -regex "$folder/$pattern" "$@" -exec rm -rf {} +
}
check_uid() { [[ $1 =~ ^$uids$ ]] || refuse 9 "not the name of a run: $1"; }
hello() {
  local program
  for program in tar cp mv stat head tail find grep xargs sha256sum setsid; do
    command -v $program > /dev/null || refuse 6 "$program is not installed there"
  done
  [ ! "$given" -ef / ] || refuse 6 "runs are not put into /"
  [ -e "$root" ] || make_root || exit 6
  is_ours || refuse 6 "$root was not made by Assay for this user, and is left as it is"
  message=$({ mkdir -p "$root/runs" "$root/code" "$root/never"; } 2>&1) || exit 6
  cd "$root" || exit 6
  message=$({ echo > ".write-test.$BASHPID"; } 2>&1) && rm -f ".write-test.$BASHPID" || refuse 6 "${message##*: }"
  touch -d yesterday .yesterday
  remove_old . "\\.old-$uids\\.[0-9]+"
  remove_old . "\\.new-$uids\\.[0-9]+" -mtime +0
  remove_old code "$hashes" -mtime +30
  remove_old runs "$uids" -mtime +0 ! -exec test -e {}/job.sh \;  # runs that were cancelled before they arrived
  find never -type f -regextype posix-extended -regex "never/$uids\.[0-9]+" -mtime +0 -exec rm -f {} +
} 2>/dev/null
started() { [ -e "$dir/token.$n" ] || [ -e "$dir/.start.$n" ] || [ -e "never/$uid.$n" ]; }
stage() {  # UID N HASH VARIABLE=VALUE...: answer `started`, or `run` or `code`: then a tar with these files follows
  local uid=$1 n=$2 hash=$3 dir=runs/$1 stat boot why; shift 3
  check_uid "$uid"
  [[ $hash =~ ^(-|$hashes)$ ]] || refuse 9 "not the name of a copy of code: $hash"
  is_ours && cd "$root" 2>/dev/null || refuse 6 "$root is not there"
  ! started || { say started; return; }
  new=.new-$uid.$BASHPID
  message=$(mkdir -m 700 "$new" 2>&1) || exit 6
  if [ "$hash" = - ] || [ -d "code/$hash" ]; then say run; else say code; fi
  message=$(chunks | { tar -x -p -o -f - -C "$new" 2>&1 || { cat > /dev/null; exit 1; }; }) || {
    why=$(head -c 100000 /dev/zero 2>&1 > "$new/full") || message=${why##*: }; exit 6
  }
  [ -e "$new/.whole" ] || exit 255  # the connection broke
  if [ -d "$new/.code-copy" ]; then
    mv -T "$new/.code-copy" "code/$hash" 2>/dev/null || rm -rf "$new/.code-copy"
    touch "code/$hash"
  elif [ "$hash" != - ] && [ ! "code/$hash" -nt .yesterday ]; then touch "code/$hash"; fi
  exec 9< . && flock 9 2>/dev/null  # an earlier connection may have brought the same files
  ! started || { say started; return; }
  if [ "$hash" != - ] && { [ ! -d "$dir/code" ] || [ "$(cat "$dir/.code" 2>/dev/null)" != "$hash" ]; }; then
    [ ! -d "$dir/code" ] || rm -rf "$dir/code"
    message=$(cp -a "code/$hash" "$new/code" 2>&1) || exit 6
  fi
  { printf '%s' "$hash" > "$new/.code"; } 2>/dev/null || refuse 6 "$root cannot be written"
  if [ -d "$dir" ]; then message=$(cp -a --remove-destination "$new/." "$dir/" 2>&1) || exit 6
  else message=$(mv -T "$new" "$dir" 2>&1) || exit 6; fi
  cd "$dir" || exit 6
  { export "$@"; exec setsid bash job.sh; } < /dev/null >> job.log 2>&1 8>&- 9>&- &
  IFS= read -r stat 2>/dev/null < "/proc/$!/stat"; read -r boot < /proc/sys/kernel/random/boot_id
  set -- x x ${stat##*) }; echo "$! ${22:-0} $boot" > ".start.$n"
  say started
}
wait_for_end() {  # WAIT (1/100 s): return when a job has ended, a request or an empty field comes, or WAIT is over
  local left=$1 i tick=$((2 + ${#ends[@]} / 20))
  while [ "$left" -gt 0 ] && ! read -r -t 0; do
    for i in "${ends[@]}"; do [ ! -e "$i" ] || return; done
    printf -v i '0.%02d' $((tick < 50 ? tick : 50)); nap "$i"; left=$((left - tick))
  done
}
look() {  # WAIT, then for each run: UID N TAG OWNERLESS COUNT, then COUNT times NAME OFFSET
  local all=("$@") ends=() i uid n tag ownerless count token state
  is_ours && [ -d "$root/runs" ] || refuse 7 "$root is not there"
  for ((i = 1; i < $#; i += 5 + 2 * all[i + 4])); do ends+=("$root/runs/${all[i]}/end.${all[i + 1]}"); done
  wait_for_end "$1"
  for ((i = 1; i < $#; )); do
    uid=${all[i]} n=${all[i + 1]} tag=${all[i + 2]} ownerless=${all[i + 3]} count=${all[i + 4]}; ((i += 5))
    check_uid "$uid"
    unset known; declare -A known=()
    for ((; count > 0; count--, i += 2)); do known[${all[i]}]=${all[i + 1]}; done
    [ ! -e "$root/never/$uid.$n" ] || { say S "$uid" "$n" never '- 0 0 - 0'; continue; }
    [ "$ownerless" = 0 ] || mkdir "$root/runs/$uid" 2>/dev/null  # the files that a dead owner has sent may still arrive
    cd "$root/runs/$uid" 2>/dev/null || { say S "$uid" "$n" missing ''; continue; }
    judge "$n"
    if [ "$state" = waiting ] && [ "$ownerless" = 1 ]; then take_token "$n" && state=never; fi
    token=; [ ! -e "token.$n" ] || read -r token < "token.$n"
    say S "$uid" "$n" "$state" "$token"
    if [ "$state" = ended ]; then list "$tag"; elif [ "$state" = never ]; then (forget "$uid" "$n"); else follow; fi
  done
}
send() {  # UID, then for each file: NAME OFFSET SIZE; answer with the bytes of one file after another, from OFFSET on
  local uid=$1 total=0 whole=() i; shift; local all=("$@")
  check_uid "$uid"
  cd "$root/runs/$uid" 2>/dev/null || refuse 7 "the run's folder is not there"
  for ((i = 0; i < ${#all[@]}; i += 3)); do total=$((total + all[i + 2] - all[i + 1])); done
  say "$total"
  {
    for ((i = 0; i < ${#all[@]}; i += 3)); do
      [ "${all[i + 1]}" = 0 ] && whole+=("${all[i]}") || tail -c "+$((all[i + 1] + 1))" -- "${all[i]}"
    done
    if [ ${#whole[@]} -gt 500 ]; then say "${whole[@]}" | xargs -0 cat --; elif [ ${#whole[@]} -gt 0 ]; then cat -- "${whole[@]}"; fi
    head -c "$total" /dev/zero  # fills up for a file that has shrunk: the hashes show the difference
  } 2>/dev/null | head -c "$total"
}
cancel() {  # ROUNDS of a tenth of a second before KILL, then for each job UID N TAG MAY_COME (the job may still arrive)
  local rounds=$1 round i told=' '; shift; local jobs=("$@")
  gather() {
    local i leader pid start boot _; all=
    for ((i = 0; i < ${#jobs[@]}; i += 4)); do
      leader=; cd "$root/runs/${jobs[i]}" 2>/dev/null && read -r _ pid start boot _ 2>/dev/null < "token.${jobs[i + 1]}" &&
        alive "$pid" "$start" "$boot" && leader=$pid
      members=; [ -z "$leader" ] || of_session "$leader"
      find_tagged "${jobs[i + 2]}"
      all+=" $leader $members $tagged"
    done
    all=${all//  / }; [ -n "${all// /}" ]
  }
  for ((i = 0; i < ${#jobs[@]}; i += 4)); do
    check_uid "${jobs[i]}"
    [ "${jobs[i + 3]}" = 0 ] || ! is_ours || [ -e "$root/never/${jobs[i]}.${jobs[i + 1]}" ] || mkdir "$root/runs/${jobs[i]}" 2>/dev/null
    cd "$root/runs/${jobs[i]}" 2>/dev/null && { take_token "${jobs[i + 1]}"; : >> "stop.${jobs[i + 1]}"; }
  done
  for ((round = 0; ; round++)); do
    gather || gather || break
    [ $round -le $((rounds + 100)) ] || refuse 8 "cannot be ended:$all"
    if [ $round -ge "$rounds" ] && [ $round -gt 0 ]; then kill -KILL $all
    else for pid in $all; do case $told in *" $pid "*) ;; *) kill -TERM "$pid"; told+="$pid " ;; esac; done; fi 2>/dev/null
    nap 0.1
  done
  for ((i = 0; i < ${#jobs[@]}; i += 4)); do
    cd "$root/runs/${jobs[i]}" 2>/dev/null && : > "end.${jobs[i + 1]}" || continue
    read -r pid _ 2>/dev/null < "token.${jobs[i + 1]}" && [ "$pid" != - ] || (forget "${jobs[i]}" "${jobs[i + 1]}")
  done
}
remove() {  # UID: rename the folder of a run, so that it disappears at once, then remove its files
  check_uid "$1"
  is_ours && cd "$root" 2>/dev/null || return 0
  local old=.old-$1.$BASHPID
  [ ! -d "runs/$1" ] || mv -T "runs/$1" "$old" 2>/dev/null
  rm -rf "$old" > /dev/null 2>&1 8>&- 9>&- &
}
forget() {  # UID N: remove the run's copy, unless another attempt uses it; attempt N is not started if it arrives later
  local file i
  check_uid "$1"
  is_ours && cd "$root" 2>/dev/null && exec 9< . && flock 9 2>/dev/null || return 0  # locked: no files are arriving
  : > "never/$1.$2" || return 0
  for file in "runs/$1"/token.* "runs/$1"/.start.*; do
    [ ! -e "$file" ] || [ "${file##*.}" = "$2" ] || return 0
  done
  for ((i = 0; i < 100; i++)); do  # job.sh exits as soon as it finds its token taken; the token must exist until then
    (cd "runs/$1" 2>/dev/null && is_starting "$2") || { remove "$1"; return; }
    nap 0.05
  done
}

while IFS= read -r -d '' count; do
  [ -n "$count" ] || continue
  words=(); for ((; count > 0; count--)); do IFS= read -r -d '' word || exit 1; words+=("$word"); done
  (
    message= new=
    trap 'code=$?; [ -z "$new" ] || [ ! -d "$root/$new" ] || rm -rf "$root/$new"; [ $code = 0 ] || say Z $code "$message"; exit $code' EXIT
    "${words[@]}"
    say Z 0 ''
  )
  [ $? -lt 100 ] || exit 1  # an answer was cut off in the middle
done
