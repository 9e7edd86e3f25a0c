"""Completion scripts for shells, written from the grammar of the command line. They hold all words; completing starts no process."""

from __future__ import annotations

import shlex
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence

from esper.cli.grammar import Context, Flag, Values
from esper.cli.main import COMMANDS

LONGEST = 70
"""Letters of a description."""

LOOK_UP = """\
_esper_context() { # CONTEXT: what can be typed there; fails where there is no such context
    flags=() more=() values=() paths= many=
    case $1 in
%s
    *) return 1 ;;
    esac
}

_esper_takes() { # CONTEXT FLAG: what the flag takes; fails where it takes nothing
    values=() paths= many=
    case "$1:$2" in
%s
    *) return 1 ;;
    esac
}

"""
"""What both scripts begin with; bash and zsh read it alike."""

BASH = (
    """\
# Completion of esper for bash, written by `esper completion bash`.

"""
    + LOOK_UP
    + """\
_esper() {
    local context= flag= word number=${#COMP_WORDS[@]} used=0 cur=${COMP_WORDS[COMP_CWORD]}
    local -a flags more values line=("${COMP_WORDS[@]:1:COMP_CWORD-1}")
    local paths many
    COMPREPLY=()
    if [[ $cur == = ]]; then cur=; fi # bash takes --flag=value for three words
    if ((${#line[@]})) && _esper_context "${line[0]}"; then
        context=${line[0]}
        if [[ " ${line[*]} " == *" --resume "* ]] && _esper_context "$context --resume"; then
            context+=" --resume"
        elif ((${#line[@]} > 1)) && _esper_context "$context ${line[1]}"; then
            context+=" ${line[1]}"
            line=("${line[@]:1}")
        fi
        for word in "${line[@]:1}"; do
            case $word in
            -*) flag=$word used=0 ;;
            =) ;;
            *) used=$((used + 1)) ;;
            esac
        done
    elif ((${#line[@]})); then
        return
    fi
    if [[ $cur == -* ]]; then
        _esper_context "$context"
        COMPREPLY=($(compgen -W "${flags[*]}" -- "$cur"))
        if ((${#COMPREPLY[@]} == 0)); then COMPREPLY=($(compgen -W "${more[*]}" -- "$cur")); fi
        return
    fi
    if [[ -z $flag ]] || ! _esper_takes "$context" "$flag" || { [[ -z $many ]] && ((used)); }; then
        _esper_context "$context"
    fi
    COMPREPLY=($(compgen -W "${values[*]}" -- "$cur"))
    if [[ -n $paths ]]; then
        compopt -o filenames 2>/dev/null
        while IFS= read -r word; do COMPREPLY+=("$word"); done < <(compgen -f -- "$cur")
    fi
}

complete -F _esper esper
"""
)

ZSH = (
    """\
#compdef esper
# Completion of esper for zsh, written by `esper completion zsh`.

"""
    + LOOK_UP
    + """\
_esper() {
    local context= flag= word cur=${words[CURRENT]} paths many
    local -i used=0
    local -a flags more values line
    line=("${(@)words[2,CURRENT-1]}")
    if (( $#line )) && _esper_context "$line[1]"; then
        context=$line[1]
        if (( ${line[(I)--resume]} )) && _esper_context "$context --resume"; then
            context+=" --resume"
        elif (( $#line > 1 )) && _esper_context "$context $line[2]"; then
            context+=" $line[2]"
            shift line
        fi
        for word in "${(@)line[2,-1]}"; do
            case $word in
            -*) flag=$word used=0 ;;
            *) used+=1 ;;
            esac
        done
    elif (( $#line )); then
        return 1
    fi
    if [[ $cur == --*=* ]]; then
        flag=${cur%%%%=*} used=0
        compset -P 1 '*='
    elif [[ $cur == -* ]]; then
        _esper_context "$context"
        if [[ -n ${(M)flags:#$cur*} ]]; then _describe -o flag flags; else _describe -o setting more; fi
        return
    fi
    if [[ -z $flag ]] || ! _esper_takes "$context" "$flag" || { [[ -z $many ]] && (( used )) }; then
        _esper_context "$context"
    fi
    if [[ -n $paths ]]; then _alternative 'names:name:compadd -a values' 'files:path:_files'; else _describe value values; fi
}

if [[ $funcstack[1] == _esper ]]; then _esper "$@"; else compdef _esper esper; fi
"""
)

FISH = """\
# Completion of esper for fish, written by `esper completion fish`.

set -g __esper_contexts %s

function __esper_at # CONTEXT...: whether what is typed leads there
    set -l line (commandline -opc)
    set -e line[1]
    set -l context "$line[1]"
    if contains -- --resume $line; and contains -- "$context --resume" $__esper_contexts
        set context "$context --resume"
    else if contains -- "$context $line[2]" $__esper_contexts
        set context "$context $line[2]"
    end
    test "$context" = "$argv"
end

complete -c esper -f
%s
"""


def bash(contexts: Sequence[Context]) -> str:
    """The script for bash: words alone."""
    return BASH % ("\n".join(_cases(contexts, described=False)), "\n".join(_takes(contexts)))


def zsh(contexts: Sequence[Context]) -> str:
    """The script for zsh: with a description of each command and flag."""
    return ZSH % ("\n".join(_cases(contexts, described=True)), "\n".join(_takes(contexts)))


def fish(contexts: Sequence[Context]) -> str:
    """The script for fish, which has a line for each word that it knows."""
    known = " ".join(shlex.quote(" ".join(context.words)) for context in contexts if context.words)
    return FISH % (known, "\n".join(line for context in contexts for line in _fish(context)))


def _cases(contexts: Sequence[Context], *, described: bool) -> Iterator[str]:
    """For each context its flags, those that only --help-all shows, and what else can stand there."""
    for context in contexts:
        described_flags = {
            hidden: [
                _described(name, flag.help) if described else name for flag in context.flags if flag.hidden is hidden for name in flag.names
            ]
            for hidden in (False, True)
        }
        words = [_described(word, _about(word)) if described and not context.words else word for word in context.arguments.words]
        lines = [f"flags=({_words(described_flags[False])})"]
        if described_flags[True]:
            lines.append(f"more=({_words(described_flags[True])})")
        yield f"    {shlex.quote(' '.join(context.words))}) {' '.join([*lines, *_set(context.arguments, words)])} ;;"


def _takes(contexts: Sequence[Context]) -> Iterator[str]:
    """What each flag takes: as in most contexts that have it, but for those that differ, which come first."""
    by_name: dict[str, list[tuple[Context, Values | None]]] = {}
    for context in contexts:
        for flag in context.flags:
            for name in flag.names:
                by_name.setdefault(name, []).append((context, flag.takes))
    common: dict[Values, list[str]] = {}
    for name, found in by_name.items():
        usual, _ = Counter(takes for _, takes in found).most_common(1)[0]
        if usual is not None:
            common.setdefault(usual, []).append(f"*:{name}")
        for context, takes in found:
            if takes != usual:
                yield f"    {shlex.quote(' '.join(context.words))}:{name}) {_says(takes)} ;;"
    for values, patterns in common.items():
        yield f"    {' | '.join(patterns)}) {_says(values)} ;;"


def _says(takes: Values | None) -> str:
    """The body of a case: what a flag takes; fails if it takes nothing."""
    return "return 1" if takes is None else " ".join(_set(takes, takes.words)) or ":"


def _set(values: Values, words: Sequence[str]) -> list[str]:
    """Assignments that say what may follow."""
    found = [f"values=({_words(words)})"] if words else []
    return [*found, *(["paths=1"] if values.paths else []), *(["many=1"] if values.many else [])]


def _fish(context: Context) -> Iterator[str]:
    at = shlex.quote(" ".join(["__esper_at", *context.words]))
    start = f"complete -c esper -n {at}"
    if context.arguments.paths:
        yield f"{start} -F"
    for word in context.arguments.words:
        about = _about(word) if not context.words else ""
        yield f"{start} -a {shlex.quote(word)}" + (f" -d {shlex.quote(about)}" if about else "")
    for flag in context.flags:
        takes = _fish_values(flag)
        about = f" -d {shlex.quote(_short(flag.help))}" if flag.help else ""
        for name in flag.names:
            spelt = f"-l {name.removeprefix('--')}" if name.startswith("--") else f"-s {name.removeprefix('-')}"
            yield f"{start} {spelt}{takes}{about}"


def _fish_values(flag: Flag) -> str:
    if flag.takes is None:
        return ""
    words = f" -a {shlex.quote(' '.join(flag.takes.words))}" if flag.takes.words else ""
    return f" -r -F{words}" if flag.takes.paths else f" -x{words}"


def _about(word: str) -> str:
    return COMMANDS.get(word, "")


def _words(words: Sequence[str]) -> str:
    return " ".join(map(shlex.quote, words))


def _described(word: str, help: str) -> str:
    """As zsh's _describe takes it."""
    short = _short(help)
    return f"{word}:{short}" if short else word


def _short(help: str) -> str:
    """The beginning of a help text."""
    sentence = help.split(". ")[0].split(" (default:")[0]
    return textwrap.shorten(sentence, LONGEST, placeholder="...")
