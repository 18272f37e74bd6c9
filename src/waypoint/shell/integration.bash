# What makes a session's bash talk to Waypoint. Read once, at start-up (--rcfile); after a restore it is in
# bash's memory like everything else.
#
# Marks, in the manner of OSC 133, each with the shell's key so that no output can be mistaken for one:
#   J               what follows, up to C, is about jobs that ended or stopped
#   C;r=RUN;l=N     a command starts (RUN: which one; empty when somebody typed it; N: stashed letters)
#   E;n=0|1;c=LINE  what was typed, as the history has it (n: whether it is a new line there); then D follows
#   D;STATUS;r=RUN  it ended
#   A               the prompt comes next
#   B;s=STATUS      the prompt stands, readline reads
# They go to /dev/tty: the shell's own output may be redirected. Only B is part of the prompt and goes where
# that goes, because nothing else is printed after readline has set up the terminal.
#
# Nothing in here may depend on options that people set: -e, -u, -x and so on are off in every function.

[ -f /etc/bash.bashrc ] && . /etc/bash.bashrc
[ -f ~/.bashrc ] && . ~/.bashrc
# Some of those set PATH anew. (A folder of one program: nothing else is put in the shade.)
[[ $PATH == /dev/waypoint/bin/inside:* ]] || PATH=/dev/waypoint/bin/inside:${PATH//:'/dev/waypoint/bin/inside'/}

__waypoint_key=$WAYPOINT_KEY __waypoint_number= __waypoint_status=0 __waypoint_run= __waypoint_line= __waypoint_point=0 __waypoint_busy=1
unset WAYPOINT_KEY

# What is typed for `exec` is one line:
#   __waypoint_begin RUN COMMAND [INPUT]; if __waypoint_again; then eval ...; else eval ...; fi; ...prompt first
# A condition can hand the last command's status on to the next one without ending a shell that has
# `set -e` or running a trap on ERR. (And no word like `if` may come first: after an unexpected end of file
# in an eval bash does not see it for what it is.)
__waypoint_begin() {
    builtin local flags=$-
    builtin set +euxv
    # "-RUN" is a command of Waypoint's own: the history does not show it.
    __waypoint_run=${1#-} __waypoint_command=$2 __waypoint_input=$3
    [[ $1 == -* || ! -o history ]] || builtin history -s -- "$2"
    # The trace starts with the command itself.
    [[ $flags == *x* ]] && __waypoint_command=$'builtin set -x\n'$2
    builtin set "-${flags//[!euv]/}"
    builtin printf '\e]133;J;k=%s\a' "$__waypoint_key" >/dev/tty
    builtin jobs -n >/dev/tty
    builtin printf '\e]133;C;k=%s;r=%s;l=%s\a' "$__waypoint_key" "$__waypoint_run" "${#__waypoint_line}" >/dev/tty
}
__waypoint_again() {
    builtin return "$__waypoint_status"
}

# Twice before each prompt: first of all, so that the end is told before other people's hooks take their
# time, and last of all, because hooks change PS1 and an assignment to PROMPT_COMMAND replaces the first.
__waypoint_prompt() {
    builtin local status=$?
    builtin local -
    builtin set +euxv
    if [[ -n $__waypoint_busy ]]; then
        __waypoint_status=$status __waypoint_busy=
        builtin local where=${PWD//[[:cntrl:]]/?}
        [[ -n $__waypoint_run || -z $__waypoint_number ]] || __waypoint_say
        __waypoint_number=$HISTCMD
        builtin printf '\e]133;D;%s;k=%s;r=%s;p=%s\a' "$status" "$__waypoint_key" "$__waypoint_run" "$where" >/dev/tty
        __waypoint_run=
    fi
    __waypoint_hook
    [[ $1 == first ]] && builtin return "$status"
    __waypoint_busy=1
    # What a card tells about the shell; nothing is started for it, and the place is none of the session's own.
    { builtin export -p && builtin declare -F && builtin alias -p; } >|/dev/waypoint.state/shell
    [[ $PS1 == *"$__waypoint_ready" ]] || PS1+=$__waypoint_ready
    [[ $PS0 == *"$__waypoint_typed" ]] || PS0+=$__waypoint_typed
    builtin printf '\e]133;A;k=%s\a' "$__waypoint_key" >/dev/tty
    builtin return "$status"
}

# What somebody typed, for the record. Only the history has it, and nothing is started to ask it.
__waypoint_say() {
    builtin local HISTTIMEFORMAT= line=
    builtin history 1 >|/dev/waypoint.state/line
    builtin read -r -d '' line </dev/waypoint.state/line
    line=${line:0:4000}
    builtin printf '\e]133;E;k=%s;n=%s;c=%s\a' "$__waypoint_key" "$((HISTCMD != __waypoint_number))" \
        "${line//[$'\a\e']/?}" >/dev/tty
}

# The last of all prompt commands is ours, whatever was done to them; also, the line that hands a command over
# is not for the history, the command itself is.
__waypoint_hook() {
    if ((BASH_VERSINFO[0] * 100 + BASH_VERSINFO[1] >= 501)); then
        [[ ${PROMPT_COMMAND[@]: -1} == "$__waypoint_last" ]] || PROMPT_COMMAND+=("$__waypoint_last")
    else
        [[ $PROMPT_COMMAND == *"$__waypoint_last" ]] || PROMPT_COMMAND+=${PROMPT_COMMAND:+; }$__waypoint_last
    fi
    [[ $HISTIGNORE == ' __waypoint_begin *'* ]] || HISTIGNORE=' __waypoint_begin *'${HISTIGNORE:+:$HISTIGNORE}
}

# A line somebody was typing is put aside while a command from elsewhere runs, and comes back after it.
__waypoint_stash() {
    __waypoint_line=$READLINE_LINE __waypoint_point=$READLINE_POINT READLINE_LINE= READLINE_POINT=0
}
__waypoint_unstash() {
    READLINE_LINE=$__waypoint_line READLINE_POINT=$__waypoint_point __waypoint_line=
}

# (`|| :` is for traps on ERR; bash itself brings $? back after each prompt command.)
__waypoint_last='{ __waypoint_prompt || :; } 2>/dev/null'
__waypoint_ready='\[\e]133;B;k='$__waypoint_key';s=$?;r=$__waypoint_run\a\]'
__waypoint_typed='\e]133;C;k='$__waypoint_key';r=;l=0\a'
if ((BASH_VERSINFO[0] * 100 + BASH_VERSINFO[1] >= 501)); then
    PROMPT_COMMAND=('{ __waypoint_prompt first || :; } 2>/dev/null' "${PROMPT_COMMAND[@]}")
else
    PROMPT_COMMAND="{ __waypoint_prompt first; } 2>/dev/null${PROMPT_COMMAND:+; $PROMPT_COMMAND}"
fi
__waypoint_hook
# No key of these means anything to a terminal: what is typed may have to wait while a command runs.
for __waypoint_map in emacs vi-insert vi-command; do
    builtin bind -m "$__waypoint_map" -x '"\C-x\C-]s": __waypoint_stash'
    builtin bind -m "$__waypoint_map" -x '"\C-x\C-]u": __waypoint_unstash'
    builtin bind -m "$__waypoint_map" '"\C-x\C-]p": bracketed-paste-begin'
done
unset __waypoint_map
