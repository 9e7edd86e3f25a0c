#!/usr/bin/env bash
# Runs a command inside this project's own Python environment, and makes that environment first where need be.
#
# The environment is .venv next to this file. What this script knows about it lies in .venv/.go:
#   stamp    what is installed, and for which folder; "unfinished" while that changes, so that a set-up that was cut off is noticed
#   lock     held by the one process that may change the environment (lock.d where there is no flock command)
#   log      the output of Python and pip during the latest set-up
set -euo pipefail

usage() {
    cat <<'TEXT'
usage: ./go COMMAND [ARGUMENTS]

Runs COMMAND in the project's Python environment (.venv), in the current folder. The first use makes the environment; later
ones install again only when pyproject.toml or constraints.txt has changed.

  ./go esper --help      what Esper can do
  ./go pytest            the project's tests (outside the project's folder too; paths are then relative to the project)
  ./go python            Python with Esper installed
TEXT
}

say() { printf 'go: %s\n' "$*" >&2; }

# The folder of this script, also when it is started through a symbolic link.
self=${BASH_SOURCE[0]}
while [[ -L $self ]]; do
    link=$(readlink "$self")
    [[ $link == /* ]] || link=$(dirname "$self")/$link
    self=$link
done
root=$(unset CDPATH && cd -P "$(dirname "$self")" && pwd)
venv=$root/.venv
state=$venv/.go
stamp=$state/stamp
log=$state/log
job=    # process group of the running step
locked= # "flock" or "mkdir" while this process holds the lock

# What the stamp says when the environment is up to date. An environment does not survive a move, so the folder is part of it.
wanted() {
    local tool=cksum sum
    if type -P sha256sum >/dev/null; then tool=sha256sum; elif type -P shasum >/dev/null; then tool=shasum; fi
    sum=$(cat "$root/pyproject.toml" "$root/constraints.txt" | "$tool")
    printf '%s %s' "${sum%% *}" "$root"
}

read_stamp() { if [[ -f $stamp ]]; then cat "$stamp"; fi; }

write_stamp() { # atomic, because others read the stamp without holding the lock
    printf '%s' "$1" >"$stamp.new"
    mv -f "$stamp.new" "$stamp"
}

up_to_date() { [[ -x $venv/bin/python && $(read_stamp) == "$(wanted)" ]]; }

fail() {
    say "$*"
    unlock
    exit 1
}

lock() {
    if type -P flock >/dev/null; then
        exec 9>>"$state/lock"
        if ! flock -n 9; then
            say "another process is setting the environment up; waiting for it"
            flock 9
        fi
        locked=flock
    else
        lock_by_folder
    fi
}

# mkdir succeeds for one process alone. The folder names its owner (and the owner's running step), so that a lock whose owner is
# dead can be taken over; that too is decided by a mkdir, after which the owner has to be the same dead one.
lock_by_folder() {
    local folder=$state/lock.d owner said='' nameless=0
    until mkdir "$folder" 2>/dev/null; do
        owner=$(cat "$folder/owner" 2>/dev/null) || owner=
        if [[ -z $owner ]]; then nameless=$((nameless + 1)); else nameless=0; fi
        # A lock without a name was made a moment ago, or its owner died in that moment: 25 looks are 5 seconds.
        # shellcheck disable=SC2086 # one word for each process
        if { ((nameless > 25)) || { [[ -n $owner ]] && ! any_alive $owner; }; } && mkdir "$folder/takeover" 2>/dev/null; then
            if [[ $(cat "$folder/owner" 2>/dev/null || true) == "$owner" ]]; then
                printf '%s\n' $$ >"$folder/owner"
                rmdir "$folder/takeover"
                locked='mkdir'
                return
            fi
            rmdir "$folder/takeover"
        fi
        if [[ -z $said && -n $owner ]]; then
            say "another process (${owner//[[:space:]]/ }) is setting the environment up; waiting for it (if there is none, remove $folder)"
            said=yes
        fi
        sleep 0.2
    done
    printf '%s\n' $$ >"$folder/owner"
    locked='mkdir'
}

any_alive() {
    local pid
    for pid; do
        if kill -0 "$pid" 2>/dev/null; then return 0; fi
    done
    return 1
}

unlock() {
    case $locked in
    flock) exec 9>&- ;;
    mkdir) rm -rf "$state/lock.d" ;;
    esac
    locked=
}

interrupted() {
    trap '' INT TERM HUP
    if [[ -n $job ]]; then
        kill -TERM -- "-$job" 2>/dev/null || true
        wait "$job" 2>/dev/null || true
    fi
    clear_progress
    say "interrupted; the next start sets the environment up again"
    unlock
    exit "$1"
}

clear_progress() { if [[ -t 2 ]]; then printf '\r\033[K' >&2; fi; }

# The last thing that pip says it began, short enough for a line of a terminal.
latest_in_log() {
    local line
    line=$(grep -E '^ *(Obtaining|Collecting|Processing|Downloading|Using cached|Building|Installing) ' "$log" | tail -n 1) || line=
    line=${line%% (from *}
    line=${line%%: *}
    printf '%.50s' "${line#"${line%%[! ]*}"}"
}

# run_step WHAT COMMAND...: runs COMMAND in the project's folder with its output in the log, and shows that it is alive.
# It has a process group of its own, so that all of it can be stopped, and it keeps the lock if this script is killed.
run_step() {
    local what=$1 started=$SECONDS reported=0 elapsed status=0
    shift
    set -m
    (cd "$root" && exec "$@") >>"$log" 2>&1 </dev/null &
    job=$!
    set +m
    if [[ $locked == mkdir ]]; then printf '%s\n' "$job" >>"$state/lock.d/owner"; fi
    while kill -0 "$job" 2>/dev/null; do
        sleep 0.2
        elapsed=$((SECONDS - started))
        if [[ -t 2 ]]; then
            printf '\rgo: %s, %s s  %s\033[K' "$what" "$elapsed" "$(latest_in_log)" >&2
        elif ((elapsed >= reported + 10)); then
            reported=$elapsed
            say "$what, $elapsed s  $(latest_in_log)"
        fi
    done
    wait "$job" 2>/dev/null || status=$?
    job=
    clear_progress
    return "$status"
}

# Prints "VERSION ok", "VERSION old" or "VERSION no-venv". Debian ships venv without the ensurepip that it needs.
probe='
import sys
version = "%d.%d.%d" % sys.version_info[:3]
if sys.version_info < (3, 11):
    print(version, "old")
else:
    try:
        import ensurepip, venv
        print(version, "ok")
    except ImportError:
        print(version, "no-venv")
'

# Sets $python and $version. 3.11 comes first because constraints.txt was settled with it. A name can be on PATH and not start
# (pyenv leaves such ones), and the environment that is about to be replaced is no base for a new one.
find_python() {
    local name answer old='' without_venv=''
    for name in python3.11 python3.12 python3.13 python3; do
        while IFS= read -r python; do
            if [[ $python == "$venv"/* ]]; then continue; fi
            answer=$(cd "$root" && "$python" -I -c "$probe" 2>/dev/null </dev/null) || continue
            version=${answer% *}
            case ${answer##* } in
            ok) return ;;
            old) old=" ($python is $version)" ;;
            no-venv) without_venv=${without_venv:-"$python (Python $version) has no venv module: install it (on Debian and Ubuntu: apt install python${version%.*}-venv) and start this again"} ;;
            esac
        done < <(type -aP "$name" || true)
    done
    if [[ -n $without_venv ]]; then fail "$without_venv"; fi
    fail "Esper needs Python 3.11 or newer and there is none on PATH$old: install it, for instance from python.org, and start this again"
}

make_environment() {
    local python version
    find_python
    say "making the environment $venv with Python $version ($python)"
    write_stamp unfinished
    # Everything but what belongs to this script; the lock has to stay.
    find "$venv/" -mindepth 1 -maxdepth 1 ! -name .go -exec rm -rf {} +
    run_step "making the environment" "$python" -I -m venv "$venv" ||
        fail "$python could not make the environment: $(tail -n 1 "$log"); the full output is in $log"
}

# An environment made by hand, or by this script for an older pyproject.toml, is kept; one cut off in the making is not.
environment_is_usable() {
    local was=$1
    [[ -z $was || ${was#* } == "$root" ]] &&
        "$venv/bin/python" -I -c 'import sys, pip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 </dev/null
}

# The line that names the cause: pip's or an exception's, rather than "error: metadata-generation-failed" and the advice below it.
why_pip_failed() {
    local reason hint=
    reason=$(grep -E '^ *(ERROR|[A-Za-z.]*Error): ' "$log" || grep -E '^ *error: ' "$log" || grep '[^[:space:]]' "$log" || echo "no output")
    reason=$(tail -n 1 <<<"$reason")
    reason=${reason#"${reason%%[! ]*}"}
    if grep -qE 'NewConnectionError|NameResolutionError|ConnectTimeoutError|ReadTimeoutError|ProxyError|Failed to establish|name resolution|unreachable' "$log"; then
        hint="; the package index could not be reached, so check the network and start this again"
    fi
    reason=${reason#ERROR: }
    printf '%s%s' "${reason#error: }" "$hint"
}

set_up() {
    local was started=$SECONDS remade=
    mkdir -p "$state" 2>/dev/null || fail "cannot make $state: give yourself the right to write there, or copy the project to a folder of yours"
    lock
    if up_to_date; then # another process did it meanwhile
        unlock
        return
    fi
    trap 'interrupted 130' INT
    trap 'interrupted 143' TERM
    trap 'interrupted 129' HUP
    : >"$log"
    was=$(read_stamp)
    if ! environment_is_usable "$was"; then
        make_environment
        remade=yes
    fi
    local want
    want=$(wanted)
    write_stamp unfinished
    say "installing Esper and its packages${remade:+ (a few minutes on a slow connection)}"
    if ! run_step installing "$venv/bin/python" -I -m pip install --disable-pip-version-check --no-input --progress-bar off \
        -c constraints.txt -e '.[dev]'; then
        # pip changes nothing before it has everything: what was usable still is, and the next start tries to install again.
        if [[ -z $remade ]]; then
            if [[ -n $was ]]; then write_stamp "$was"; else rm -f "$stamp"; fi
        fi
        fail "the packages could not be installed: $(why_pip_failed); pip's output is in $log"
    fi
    write_stamp "$want"
    trap - INT TERM HUP
    say "ready after $((SECONDS - started)) s"
    unlock
}

# pytest finds this project's tests only from its folder. Elsewhere it is started there, unless the caller is inside the project
# and names a path that exists where he stands.
pytest_belongs_here() {
    local argument
    if [[ $(pwd -P)/ != "$root"/* ]]; then return 1; fi
    for argument; do
        if [[ $argument != -* && -e ${argument%%::*} ]]; then return 0; fi
    done
    return 1
}

case ${1-} in
'')
    usage >&2
    exit 2
    ;;
-h | --help)
    usage
    exit 0
    ;;
esac

if ! up_to_date; then set_up; fi

export VIRTUAL_ENV=$venv PATH=$venv/bin:$PATH
unset PYTHONHOME
if [[ $1 == pytest ]] && ! pytest_belongs_here "${@:2}"; then cd "$root"; fi
if ! type -P -- "$1" >/dev/null; then
    say "there is no command $1, neither in the project's environment nor on PATH"
    exit 127
fi
exec -- "$@"
