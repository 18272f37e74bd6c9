# What makes a session's bash talk to Waypoint. Read once, at start-up (--rcfile); after a restore it is in
# bash's memory like everything else.
#
# Marks, in the manner of OSC 133, each with the shell's key so that no output can be mistaken for one:
#   C;r=RUN;l=N     a command starts (RUN: which one; empty when somebody typed it; N: stashed letters)
#   D;STATUS;r=RUN  it ended
#   B               the prompt stands, readline reads
# They go to /dev/tty: the shell's own output may be redirected.

[ -f /etc/bash.bashrc ] && . /etc/bash.bashrc
[ -f ~/.bashrc ] && . ~/.bashrc

__waypoint_key=$WAYPOINT_KEY __waypoint_status=0 __waypoint_run= __waypoint_line= __waypoint_point=0 __waypoint_busy=1
unset WAYPOINT_KEY

__waypoint_begin() {
    builtin local -
    builtin set +xv
    # "-RUN" is a command of Waypoint's own: the history does not show it.
    __waypoint_run=${1#-} __waypoint_command=$2 __waypoint_input=$3
    [[ $1 == -* ]] || builtin history -s -- "$2"
    builtin printf '\e]133;C;k=%s;r=%s;l=%s\a' "$__waypoint_key" "$__waypoint_run" "${#__waypoint_line}" >/dev/tty
    builtin return "$__waypoint_status"
}

# Twice before each prompt: first of all, so that the end is told before other people's hooks take their
# time, and last of all, because hooks change PS1 and an assignment to PROMPT_COMMAND replaces the first.
__waypoint_prompt() {
    builtin local status=$?
    builtin local -
    builtin set +xv
    if [[ -n $__waypoint_busy ]]; then
        __waypoint_status=$status __waypoint_busy=
        builtin local where=${PWD//[[:cntrl:]]/?}
        builtin printf '\e]133;D;%s;k=%s;r=%s;p=%s\a' "$status" "$__waypoint_key" "$__waypoint_run" "$where" >/dev/tty
        __waypoint_run=
    fi
    [[ $1 == first ]] && builtin return "$status"
    __waypoint_busy=1
    # What a card tells about the shell; nothing is started for it, and /dev is no part of the snapshot.
    { builtin export -p && builtin declare -F && builtin alias -p; } >|/dev/waypoint.shell
    [[ $PS1 == *"$__waypoint_ready" ]] || PS1+=$__waypoint_ready
    [[ $PS0 == *"$__waypoint_typed" ]] || PS0+=$__waypoint_typed
    builtin return "$status"
}

# A line somebody was typing is put aside while a command from elsewhere runs, and comes back after it.
__waypoint_stash() {
    __waypoint_line=$READLINE_LINE __waypoint_point=$READLINE_POINT READLINE_LINE= READLINE_POINT=0
}
__waypoint_unstash() {
    READLINE_LINE=$__waypoint_line READLINE_POINT=$__waypoint_point __waypoint_line=
}

# The line that hands a command over starts with a space; the command itself goes into the history.
[[ $HISTCONTROL == *ignorespace* || $HISTCONTROL == *ignoreboth* ]] || HISTCONTROL=ignorespace${HISTCONTROL:+:$HISTCONTROL}

__waypoint_ready='\[\e]133;B;k='$__waypoint_key'\a\]'
__waypoint_typed='\e]133;C;k='$__waypoint_key';r=;l=0\a'
if ((BASH_VERSINFO[0] * 100 + BASH_VERSINFO[1] >= 501)); then
    PROMPT_COMMAND=('{ __waypoint_prompt first; } 2>/dev/null' "${PROMPT_COMMAND[@]}")
    PROMPT_COMMAND[99]='{ __waypoint_prompt; } 2>/dev/null'
else
    PROMPT_COMMAND="{ __waypoint_prompt first; } 2>/dev/null${PROMPT_COMMAND:+; $PROMPT_COMMAND}; { __waypoint_prompt; } 2>/dev/null"
fi
for __waypoint_map in emacs vi-insert vi-command; do
    builtin bind -m "$__waypoint_map" -x '"\C-x\C-ws": __waypoint_stash'
    builtin bind -m "$__waypoint_map" -x '"\C-x\C-wu": __waypoint_unstash'
    builtin bind -m "$__waypoint_map" '"\C-x\C-wp": bracketed-paste-begin'
done
unset __waypoint_map
