# The guard of a job on a board: takes the lock, refreshes it, and cleans up. The guard runs on the board as long as the
# process at the other end of stdin is alive. Whatever ends the guard, no process, folder or lock of the job remains.
# The script uses plain POSIX with date, cat, mkdir, mv, rm, sleep: boards have little more.
#
# sh board.sh LOCK DIR TOKEN OWNER WAIT_S EXPIRY_S
# prints "held OWNER" while it waits, "busy OWNER" after WAIT_S, "locked" once it has the lock, and "lost" when another
# process has taken the lock, because it had expired.
#
# The guard has two processes. The outer process only reads stdin, so that it notices the end of stdin at once; the
# inner process keeps the lock. They exchange states by files: a trap that interrupts a $(…) breaks some versions of bash.
set -u
lock=$1 dir=$2 token=$3 owner=$4 wait_s=$5 expiry_s=$6
umask 077

now() { date +%s; }

nap() { sleep 1 >/dev/null 2>&1 </dev/null; }

beat() { now >"$lock/beat.$token" && mv "$lock/beat.$token" "$lock/beat"; } 2>/dev/null

# Prints the seconds since a lock was last refreshed. A lock without a time was just made, or its maker died at once.
age() {
    last=$(cat "$1/beat" 2>/dev/null)
    case $last in '' | *[!0-9]*) last=$since ;; esac
    echo $(($(now) - last))
}

# Prints the seconds since the last line on stdin. The file with its time is empty for an instant while it is written.
silence() {
    heard=$(cat "$dir.heard" 2>/dev/null)
    echo $(($(now) - ${heard:-$(now)}))
}

is_mine() { [ "$(cat "$lock/token" 2>/dev/null)" = "$token" ]; }

is_over() { [ -e "$dir.over" ]; }

take() {
    mkdir "$lock" 2>/dev/null || return 1
    echo "$owner" >"$lock/owner"
    beat
    echo "$token" >"$lock/token"
}

# An expired lock is moved away by one process at a time, which first checks its age again: two processes that find the
# same expired lock must not move each other's new lock.
take_over() {
    mkdir "$lock.guard" 2>/dev/null || { [ "$(age "$lock.guard")" -gt "$expiry_s" ] && rm -rf "$lock.guard"; return; }
    now >"$lock.guard/beat"
    [ "$(age "$lock")" -gt "$expiry_s" ] && mv "$lock" "$lock.dead.$token" && rm -rf "$lock.dead.$token"
    rm -rf "$lock.guard"
}

end_job() {
    job=$(cat "$dir/pid" 2>/dev/null)
    [ -n "$job" ] && { kill -9 "-$job" || kill -9 "$job"; } 2>/dev/null
    rm -rf "$dir"
}

release() {
    is_mine && mv "$lock" "$lock.done.$token" 2>/dev/null && rm -rf "$lock.done.$token"
}

wait_for_lock() {
    shown=
    until take; do
        is_over && return 1
        if [ "$(age "$lock")" -gt "$expiry_s" ]; then
            take_over
        else
            holder=$(cat "$lock/owner" 2>/dev/null)
            # a lock has no owner while it is made or released
            [ "$holder" = "$shown" ] || [ -z "$holder" ] || { echo "held $holder" && shown=$holder; }
            [ $(($(now) - since)) -ge "$wait_s" ] && echo "busy $holder" && return 1
        fi
        nap
    done
}

keep_lock() {
    wait_for_lock || return
    echo locked
    while is_mine; do
        beat
        # a connection that is open and silent was cut
        [ "$(silence)" -gt "$expiry_s" ] && end_job && release && return
        is_over && return
        nap
    done
    end_job
    echo lost
}

finish() {
    end_job
    : >"$dir.over"
    # a keeper that holds the lock may be killed at any time; a keeper that waits ends when it finds $dir.over
    is_mine && kill -9 "$keeper" 2>/dev/null
    wait "$keeper" 2>/dev/null
    end_job
    release
    rm -f "$dir.heard" "$dir.over"
}

since=$(now)
now >"$dir.heard" && mkdir "$dir" "$dir/outputs" "$dir/profile" || exit 1
keep_lock </dev/null &
keeper=$!
trap 'finish; exit 1' TERM INT HUP
while IFS= read -r _; do date +%s >"$dir.heard"; done
trap '' TERM INT HUP
finish
