# What is done on a host that is reached by ssh, by bash with the argument ROOT, which reads requests from stdin.
# Everything is in ROOT/.assay-jobs, made here with a marker file: nothing outside of it is changed, and in it only names
# that are made here are removed. runs/UID is a run's folder, code/HASH a copy of the code that runs are given copies of,
# never/UID.N an attempt that may not begin here any more, for a day.
# A request is a count and as many fields; fields end with a zero byte in both directions: names may hold anything else.
# An empty field instead of a count ends the wait of `look`. Each request has a subshell of its own.
set +eu; export LC_ALL=C
given=$1
case $given in '~') given=$HOME ;; '~/'*) given=$HOME/${given#'~/'} ;; /*) ;; *) given=$HOME/$given ;; esac
root=$given/.assay-jobs marker=made-by-assay
uids='[0-9a-f]{12}' hashes='[0-9a-f]{32}'
exec 8<> <(:)  # nothing ever comes from there: a read with a time limit sleeps without a process

nap() { read -r -t "$1" -u 8 _; [ $? -gt 128 ] || sleep "$1"; }
say() { printf '%s\0' "$@"; }
refuse() { message=$2; exit "$1"; }
alive() {  # PID START BOOT: after the set, field k of /proc/PID/stat is argument k
  local stat boot=-
  read -r boot < /proc/sys/kernel/random/boot_id; [ "$3" = "$boot" ] || return 1
  IFS= read -r stat < "/proc/$1/stat" || return 1
  set -- "$1" "$2" ${stat##*) }; [ "${22}" = "$2" ] && [ "$3" != Z ]
} 2>/dev/null
take_token() {  # a job that has not begun by now never will
  { set -C; echo "- 0 0 - 0" > "token.$1"; } 2>/dev/null; local code=$?; set +C; return $code
}
is_starting() { local pid start boot; read -r pid start boot 2>/dev/null < ".start.$1" && alive "$pid" "$start" "$boot"; }
judge() {  # of attempt N, in the run's folder; into state
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
  elif [ -e "token.$1" ]; then state=running  # it is just being written, or could not be: the disk is full
    is_starting "$1" || { nap 0.2; [ -s "token.$1" ] || is_starting "$1" || state=dead; }
  else state=waiting; fi
}
emit() {  # NAME OFFSET SIZE: as many bytes as announced, also where the file shrinks meanwhile
  say F "$1" "$2" $(($3 - $2))
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
find_tagged() {  # TAG: into tagged, the processes of an attempt
  local file; tagged=
  [ -n "$1" ] || return 0
  for file in $(grep -lzxF -e "ASSAY_ATTEMPT=$1" /proc/[0-9]*/environ 2>/dev/null); do
    file=${file#/proc/}; tagged+=" ${file%/*}"
  done
}
list() {  # TAG: files, links and empty folders but the code, with sizes and hashes; and what still runs
  local name pid round not_code=(\( -path ./code -o -path './code.*' \) -type d -prune -o)
  for round in 1 2 3 4 5; do  # what has ended may need a moment to be gone
    find_tagged "$1"; [ -n "$tagged" ] || break; nap 0.02
  done
  for pid in $tagged; do read -r name 2>/dev/null < "/proc/$pid/comm" && say P "$pid $name"; done
  say N; rm -f .now; : > .now  # times are compared with this one's, by one and the same clock
  find . "${not_code[@]}" -type d ! \( -readable -executable \) -printf 'u\0%P\0%s\0%T@\0\0' -prune -o \
    \( -type f -o -type l -o -type d -empty \) -printf '%y\0%P\0%s\0%T@\0%l\0' 2>/dev/null; say ''
  find . "${not_code[@]}" -type f -exec sha256sum -z -- {} + 2>/dev/null; say ''
}
of_session() {  # PID: into members, everything in the session that it opened
  local file stat; members=
  for file in /proc/[0-9]*/stat; do
    IFS= read -r stat < "$file" || continue
    set -- "$1" x ${stat##*) }; [ "$6" != "$1" ] || [ "$3" = Z ] || { file=${file#/proc/}; members+=" ${file%/*}"; }
  done 2>/dev/null
}
chunks() { local size; while IFS= read -r -d '' size && [ "$size" -gt 0 ]; do head -c "$size"; done; }

is_ours() { [ -f "$root/$marker" ] && [ -O "$root" ]; }
make_root() {  # with its marker, or not at all; what is there already stays as it is
  local new=$root.$BASHPID.$RANDOM
  [ -d "$given" ] || message=$(mkdir -p -m 700 "$given" 2>&1) || return
  message=$(mkdir -m 700 "$new" 2>&1) || return
  message=$({ echo 'Assay made this folder, and removes what it no longer needs in it.' > "$new/$marker"; } 2>&1) &&
    mv -n -T "$new" "$root"
  [ ! -d "$new" ] || { rm -f "$new/$marker"; rmdir "$new"; }  # another was first, or the disk is full
  [ -e "$root" ]
}
remove_old() {  # FOLDER PATTERN TEST...: what has exactly such a name
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
  remove_old runs "$uids" -mtime +0 ! -exec test -e {}/job.sh \;  # cancelled before they came
  find never -type f -regextype posix-extended -regex "never/$uids\.[0-9]+" -mtime +0 -exec rm -f {} +
} 2>/dev/null
started() { [ -e "$dir/token.$n" ] || [ -e "$dir/.start.$n" ] || [ -e "never/$uid.$n" ]; }
stage() {  # UID N HASH VARIABLE=VALUE...; answers `started`, or what it needs: `run` or `code`; then come the files, as a tar
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
  exec 9< . && flock 9 2>/dev/null  # an earlier connection may have brought the same
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
wait_for_end() {  # WAIT in hundredths of a second: until a job has ended, a request or an empty field comes, or the time is over
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
    [ "$ownerless" = 0 ] || mkdir "$root/runs/$uid" 2>/dev/null  # what its dead owner has sent may still be on its way
    cd "$root/runs/$uid" 2>/dev/null || { say S "$uid" "$n" missing ''; continue; }
    judge "$n"
    if [ "$state" = waiting ] && [ "$ownerless" = 1 ]; then take_token "$n" && state=never; fi
    token=; [ ! -e "token.$n" ] || read -r token < "token.$n"
    say S "$uid" "$n" "$state" "$token"
    if [ "$state" = ended ]; then list "$tag"; elif [ "$state" = never ]; then (forget "$uid" "$n"); else follow; fi
  done
}
send() {  # UID, then for each file: NAME OFFSET SIZE; answers with their bytes from there on, one after another
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
    head -c "$total" /dev/zero  # where a file has shrunk: the hashes show it
  } 2>/dev/null | head -c "$total"
}
cancel() {  # ROUNDS of a tenth of a second before KILL, then for each job UID N TAG MAY_COME: it may still be on its way
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
remove() {  # UID: at once gone, or not at all
  check_uid "$1"
  is_ours && cd "$root" 2>/dev/null || return 0
  local old=.old-$1.$BASHPID
  [ ! -d "runs/$1" ] || mv -T "runs/$1" "$old" 2>/dev/null
  rm -rf "$old" > /dev/null 2>&1 8>&- 9>&- &
}
forget() {  # UID N: its copy goes, unless another attempt of the run has it; what is sent of N from now on is not started
  local file i
  check_uid "$1"
  is_ours && cd "$root" 2>/dev/null && exec 9< . && flock 9 2>/dev/null || return 0  # nothing is being brought then
  : > "never/$1.$2" || return 0
  for file in "runs/$1"/token.* "runs/$1"/.start.*; do
    [ ! -e "$file" ] || [ "${file##*.}" = "$2" ] || return 0
  done
  for ((i = 0; i < 100; i++)); do  # job.sh leaves as soon as it finds its token taken: not before the token goes
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
  [ $? -lt 100 ] || exit 1  # cut off in the middle of an answer
done
