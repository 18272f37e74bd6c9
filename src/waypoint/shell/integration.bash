# Makes a session's bash report to Waypoint. Read once, at start-up (--rcfile); after a restore it is in bash's
# memory like everything else. So shells of older checkpoints have older versions of it: what
# terminal/shell.py types into a shell, and the marks, must stay as they are.
#
# Marks, in the form of OSC 133, each with the shell's key so that no output can be mistaken for one:
#   J               the text that follows, up to C, is about jobs that ended or stopped
#   C;r=RUN;l=N     a command starts (RUN: its id, empty for a typed command; N: length of the stashed line)
#   E;n=0|1;c=LINE  the typed line, from the history (n: whether it is a new entry there); D follows
#   D;STATUS;r=RUN  the command ended
#   A               the prompt comes next
#   B;s=STATUS      the prompt is complete, readline reads
# They go to /dev/tty: the shell's own output may be redirected. Only B is part of the prompt and goes to the same
# place, because nothing else is printed after readline has set up the terminal.
#
# Nothing in here may depend on shell options of the user: -e, -u, -x and so on are off in every function.

[ -f /etc/bash.bashrc ] && . /etc/bash.bashrc
[ -f ~/.bashrc ] && . ~/.bashrc
# Some of those set PATH anew. (The folder holds one program: no other command is hidden by it.)
[[ $PATH == /dev/waypoint/bin/inside:* ]] || PATH=/dev/waypoint/bin/inside:${PATH//:'/dev/waypoint/bin/inside'/}

__waypoint_key=$WAYPOINT_KEY __waypoint_mark= __waypoint_number= __waypoint_status=0 __waypoint_run= __waypoint_line= __waypoint_point=0 __waypoint_busy=1
unset WAYPOINT_KEY

# To run a command, Waypoint types one line:
#   __waypoint_begin RUN COMMAND [INPUT]; if __waypoint_again; then eval ...; else eval ...; fi; ...prompt first
# A condition passes the last command's status on to the next one without ending a shell that has `set -e` or
# running a trap on ERR. (No word like `if` may come first: after an unexpected end of file in an eval bash does not
# recognize it.)
__waypoint_begin() {
    builtin local flags=$-
    builtin set +euxv
    # "-RUN" is a command of Waypoint itself: the history does not show it.
    __waypoint_run=${1#-} __waypoint_command=$2 __waypoint_input=$3
    [[ $1 == -* || ! -o history ]] || builtin history -s -- "$2"
    __waypoint_tell_name 2>/dev/null
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

# Runs twice before each prompt: before all other prompt commands, so that the end is reported before they take
# their time, and after all of them, because they change PS1 and an assignment to PROMPT_COMMAND removes the first.
__waypoint_prompt() {
    # (A local variable hides the user's of that name from the listing.)
    builtin local __waypoint_code=$? __waypoint_flags=$-
    builtin local -
    builtin set +euxv
    if [[ -n $__waypoint_busy ]]; then
        __waypoint_status=$__waypoint_code __waypoint_busy=
        builtin local "__waypoint_where=${PWD//[[:cntrl:]]/?}"
        [[ -n $__waypoint_run || -z $__waypoint_number ]] || __waypoint_report_line
        __waypoint_number=$HISTCMD
        builtin printf '\e]133;D;%s;k=%s;r=%s;p=%s\a' "$__waypoint_code" "$__waypoint_key" "$__waypoint_run" \
            "$__waypoint_where" >/dev/tty
        __waypoint_run=
    fi
    __waypoint_hook
    [[ $1 == first ]] && builtin return "$__waypoint_code"
    __waypoint_busy=1
    __waypoint_tell_name
    # The state of the shell, for cards. No process is started for it, and the files are none of the session.
    builtin export -p >|/dev/waypoint.state/shell
    __waypoint_list >|/dev/waypoint.state/listing
    if builtin shopt -q promptvars && [[ -n $__waypoint_mark ]]; then
        [[ $PS1 == *'${__waypoint_mark}'* ]] || PS1='${__waypoint_mark}'$PS1
    else
        PS1=${PS1//'${__waypoint_mark}'}
    fi
    [[ $PS1 == *"$__waypoint_ready" ]] || PS1+=$__waypoint_ready
    [[ $PS0 == *"$__waypoint_typed" ]] || PS0+=$__waypoint_typed
    builtin printf '\e]133;A;k=%s\a' "$__waypoint_key" >/dev/tty
    builtin return "$__waypoint_code"
}

# Tells programs and the prompt the name of the session. A fork changes it under the shell, so it is read each time;
# from a file, because no process is started for it. The mark is a word of PS1 that bash expands, so that PS1 itself is
# the same in a fork; without promptvars it would be shown as it is. A host name in PS1 (\h) tells it already, if it is
# the session's: bash reads it once, so that in a fork it is the origin's.
__waypoint_tell_name() {
    builtin local __waypoint_name= IFS=$' \n'
    builtin read -r __waypoint_name </dev/waypoint.inside/name
    [[ -n $__waypoint_name ]] || builtin return 0
    [[ ${WAYPOINT_SESSION-} == "$__waypoint_name" ]] || builtin export "WAYPOINT_SESSION=$__waypoint_name"
    __waypoint_mark="($__waypoint_name) "
    if [[ ${WAYPOINT_PROMPT-} == off || ( ${PS1-} == *\\[hH]* && ${HOSTNAME-} == "$__waypoint_name" ) ]]; then
        __waypoint_mark=
    fi
}

# What programs do not inherit; each part ends in NUL, which none of them can contain. Bash is slow where it loops over
# words and where it writes many lines: so the functions of Waypoint are listed with the others, and the options are
# not, which are in BASHOPTS and SHELLOPTS. Bodies are written each time: bash has no sign that one has changed.
# The traps come last, and not from here: inside a function bash does not list those on DEBUG, ERR and RETURN.
__waypoint_list() {
    builtin declare -p
    builtin printf '\0%s\0' "$__waypoint_flags"
    builtin declare -F
    builtin printf '\0'
    builtin declare -f
    builtin printf '\0'
    builtin alias -p
    builtin printf '\0'
    builtin umask
    builtin printf '\0'
}

# Reports the typed line. Only the history has it, and no process is started to read it.
__waypoint_report_line() {
    builtin local HISTTIMEFORMAT= line=
    builtin history 1 >|/dev/waypoint.state/line
    builtin read -r -d '' line </dev/waypoint.state/line
    line=${line:0:4000}
    builtin printf '\e]133;E;k=%s;n=%s;c=%s\a' "$__waypoint_key" "$((HISTCMD != __waypoint_number))" \
        "${line//[$'\a\e']/?}" >/dev/tty
}

# Makes ours the last of all prompt commands, whatever the user did to them. Also keeps the line that starts a
# command out of the history; the command itself goes there.
__waypoint_hook() {
    if ((BASH_VERSINFO[0] * 100 + BASH_VERSINFO[1] >= 501)); then
        [[ ${PROMPT_COMMAND[@]: -1} == "$__waypoint_last" ]] || PROMPT_COMMAND+=("$__waypoint_last")
    else
        [[ $PROMPT_COMMAND == *"$__waypoint_last" ]] || PROMPT_COMMAND+=${PROMPT_COMMAND:+; }$__waypoint_last
    fi
    [[ $HISTIGNORE == ' __waypoint_begin *'* ]] || HISTIGNORE=' __waypoint_begin *'${HISTIGNORE:+:$HISTIGNORE}
}

# A line that the user was typing is set aside while a command of Waypoint runs, and put back afterwards.
__waypoint_stash() {
    __waypoint_line=$READLINE_LINE __waypoint_point=$READLINE_POINT READLINE_LINE= READLINE_POINT=0
}
__waypoint_unstash() {
    READLINE_LINE=$__waypoint_line READLINE_POINT=$__waypoint_point __waypoint_line=
}

# (`|| :` is for traps on ERR; bash itself restores $? after each prompt command.)
__waypoint_last='{ __waypoint_prompt || :; builtin trap -p >>/dev/waypoint.state/listing || :; } 2>/dev/null'
__waypoint_ready='\[\e]133;B;k='$__waypoint_key';s=$?;r=$__waypoint_run\a\]'
__waypoint_typed='\e]133;C;k='$__waypoint_key';r=;l=0\a'
if ((BASH_VERSINFO[0] * 100 + BASH_VERSINFO[1] >= 501)); then
    PROMPT_COMMAND=('{ __waypoint_prompt first || :; } 2>/dev/null' "${PROMPT_COMMAND[@]}")
else
    PROMPT_COMMAND="{ __waypoint_prompt first; } 2>/dev/null${PROMPT_COMMAND:+; $PROMPT_COMMAND}"
fi
__waypoint_hook
# No terminal sends these keys. They are typed by Waypoint around a command.
for __waypoint_map in emacs vi-insert vi-command; do
    builtin bind -m "$__waypoint_map" -x '"\C-x\C-]s": __waypoint_stash'
    builtin bind -m "$__waypoint_map" -x '"\C-x\C-]u": __waypoint_unstash'
    builtin bind -m "$__waypoint_map" '"\C-x\C-]p": bracketed-paste-begin'
done
unset __waypoint_map
