# The warden of a job on a board: takes the lock, keeps it fresh, and cleans up. It runs on the board, for as long as
# somebody at the other end of stdin is alive. Whatever ends it, no process, no folder and no lock of the job stays.
# Plain POSIX with date, cat, mkdir, mv, rm, sleep: boards have little more.
#
# sh board.sh LOCK DIR TOKEN OWNER WAIT_S EXPIRY_S
# says: "held OWNER" while it waits, "busy OWNER" when that took too long, "locked" once the lock is ours, "lost" when
# somebody thought us dead and took it.
set -u
lock=$1 dir=$2 token=$3 owner=$4 wait_s=$5 expiry_s=$6
umask 077
exec 3<&0 </dev/null

now() { date +%s; }

beat() { now >"$lock/beat.$token" && mv "$lock/beat.$token" "$lock/beat"; } 2>/dev/null

# Seconds since a lock was last kept fresh. One that has no time yet was made this instant, or its maker died in it.
age() {
    last=$(cat "$1/beat" 2>/dev/null)
    case $last in '' | *[!0-9]*) last=$since ;; esac
    echo $(($(now) - last))
}

is_mine() { [ "$(cat "$lock/token" 2>/dev/null)" = "$token" ]; }

take() {
    mkdir "$lock" 2>/dev/null || return 1
    echo "$token" >"$lock/token"
    echo "$owner" >"$lock/owner"
    beat
}

# An expired lock is moved away by one at a time, who looks again first: two that see the same dead lock must not move
# each other's fresh one.
take_over() {
    mkdir "$lock.guard" 2>/dev/null || { [ "$(age "$lock.guard")" -gt "$expiry_s" ] && rm -rf "$lock.guard"; return; }
    now >"$lock.guard/beat"
    [ "$(age "$lock")" -gt "$expiry_s" ] && mv "$lock" "$lock.dead.$token" && rm -rf "$lock.dead.$token"
    rm -rf "$lock.guard"
}

finish() {
    trap '' TERM INT HUP PIPE
    trap - EXIT
    job=$(cat "$dir/pid" 2>/dev/null)
    [ -n "$job" ] && { kill -9 "-$job" || kill -9 "$job"; } 2>/dev/null
    rm -rf "$dir" "$dir.heard"
    is_mine && mv "$lock" "$lock.done.$token" 2>/dev/null && rm -rf "$lock.done.$token"
    kill "$reader" 2>/dev/null
    exit "${1:-0}"
}

{
    while IFS= read -r _; do now >"$dir.heard"; done
    kill -TERM $$
} <&3 >/dev/null 2>&1 &
reader=$!
trap finish TERM INT HUP PIPE EXIT
since=$(now) start=$(now) said=
now >"$dir.heard"

until take; do
    if [ "$(age "$lock")" -gt "$expiry_s" ]; then
        take_over
    else
        holder=$(cat "$lock/owner" 2>/dev/null)
        [ "$holder" = "$said" ] || echo "held $holder"
        said=$holder
        [ $(($(now) - start)) -ge "$wait_s" ] && echo "busy $holder" && finish 3
    fi
    sleep 1 & wait $!
done

mkdir "$dir" "$dir/outputs" "$dir/profile" || finish 4
echo locked
while is_mine; do
    beat
    [ $(($(now) - $(cat "$dir.heard"))) -gt "$expiry_s" ] && finish 5
    sleep 1 & wait $!
done
echo lost
finish 6
