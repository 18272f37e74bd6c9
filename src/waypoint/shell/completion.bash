# What bash offers after `waypoint …` and TAB. `waypoint completion` prints it below what it knows of
# the verbs; zsh runs it too. In a list of values @sessions, @points and @files stand for names that are looked up.
_waypoint() {
    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]}
    local verb='' values='' options='' session='' at=1
    while [[ ${COMP_WORDS[at]} == -* && at -lt COMP_CWORD ]]; do
        [[ ${COMP_WORDS[at]} == --home ]] && ((at++))
        ((at++))
    done
    if ((at >= COMP_CWORD)); then
        values=$_waypoint_verbs options='--json --home --no-color --quiet --help --version'
    else
        verb=${COMP_WORDS[at]}
        case " $_waypoint_families " in
            *" $verb "*) ((COMP_CWORD > at + 1)) && verb="$verb ${COMP_WORDS[at+1]}" ;;
        esac
        _waypoint_of_verb
    fi
    [[ $word == -* ]] && values=$options
    for ((at = 1; at < COMP_CWORD - 1; at++)); do
        case ${COMP_WORDS[at]} in -s | --session) session=${COMP_WORDS[at+1]} ;; esac
    done
    COMPREPLY=()
    for at in $values; do
        case $at in
            @sessions) at=$(waypoint complete sessions 2>/dev/null) ;;
            @points) at=$(waypoint complete points ${session:+-s "$session"} 2>/dev/null) ;;
            @files) COMPREPLY+=($(compgen -f -- "$word")) && continue ;;
        esac
        COMPREPLY+=($(compgen -W "$at" -- "$word"))
    done
}
complete -o bashdefault -F _waypoint waypoint ./waypoint
