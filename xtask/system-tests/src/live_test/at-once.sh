# Several programs install and undo at once, and one of them is stopped at the worst moment.

INIT_MODULE=175
# An apply that is stopped when its module is loaded, and is not installed yet.
stop_when_loaded() { # FUNCTION
    rm -f /tmp/stopped-$1
    stopped $INIT_MODULE /kl/kernlane live apply $V --function $1 >/tmp/stopped-$1 2>&1 &
}
is_stopped() { grep -q '^stopped ' /tmp/stopped-$1 2>/dev/null; }
process_of() { sed -n 's/^stopped //p' /tmp/stopped-$1; }
# An emulated machine may need a minute for one.
patiently() { await "$@" || await "$@" || await "$@"; }

command_line=$(cat /proc/cmdline) version=$(cat /proc/version)
all_is_told() {
    [ "$(cat /proc/cmdline)" = "$command_line" ] && [ "$(cat /proc/version)" = "$version" ]
}

stop_when_loaded cmdline_proc_show
first=$!
patiently is_stopped cmdline_proc_show ||
    failed "an apply is stopped" "$(cat /tmp/stopped-cmdline_proc_show)"
stranger=$(process_of cmdline_proc_show)
$K undo >/tmp/out 2>&1
status=$?
installs="process $stranger.* is installing a group"
[ $status = 1 ] && grep -q "was not installed; .*$installs" /tmp/out &&
    passed "undo leaves what is being installed" ||
    failed "undo leaves what is being installed" "status $status: $(cat /tmp/out)"
stop_when_loaded version_proc_show
second=$!
comes() { is_stopped version_proc_show || grep -q 'waiting for it' /tmp/stopped-version_proc_show; }
patiently comes
grep -q "$installs: waiting for it" /tmp/stopped-version_proc_show &&
    passed "the next waits for its turn" ||
    failed "the next waits for its turn" "$(cat /tmp/stopped-version_proc_show)"
kill -CONT $stranger
wait $first && passed "what was stopped installs what it has loaded" ||
    failed "what was stopped installs what it has loaded" "$(cat /tmp/stopped-cmdline_proc_show)"
check "no wrong copy is executed" all_is_told
patiently is_stopped version_proc_show
kill -CONT $(process_of version_proc_show)
wait $second && passed "then the next does" ||
    failed "then the next does" "$(cat /tmp/stopped-version_proc_show)"
check "both copies do what their functions do" all_is_told
check "both are undone" undo

# What was killed in its turn is nobody's.
stop_when_loaded cmdline_proc_show
first=$!
patiently is_stopped cmdline_proc_show
kill -9 $(process_of cmdline_proc_show)
wait $first
$K undo >/tmp/out 2>&1 && grep -q 'was not installed, and is removed' /tmp/out &&
    passed "undo removes what a killed program has loaded" ||
    failed "undo removes what a killed program has loaded" "$(cat /tmp/out)"

# All at once, of different functions, and of one.
at_once() { # FUNCTION…
    number=0 running=
    for function in "$@"; do
        number=$((number + 1))
        $K apply $V --function $function >/tmp/at-once-$number 2>&1 &
        running="$running $!"
    done
    results=
    for process in $running; do
        wait $process
        results="$results $?"
    done
}
at_once cmdline_proc_show version_proc_show uptime_proc_show
[ "$results" = " 0 0 0" ] && passed "three are installed at once" ||
    failed "three are installed at once" "$results: $(tail -n 1 /tmp/at-once-*)"
named=$(sed -n 's/^\(kernlane_[0-9]*\): .*/\1/p' /tmp/at-once-* | sort -u | wc -l)
[ "$named" = 3 ] && passed "by three names" || failed "by three names" "$named"
check "all copies do what their functions do" all_is_told
$K undo >/tmp/undone-1 2>&1 &
first=$!
$K undo >/tmp/undone-2 2>&1
status=$?
wait $first && [ $status = 0 ] && passed "two undos at once end well" ||
    failed "two undos at once end well" "$(cat /tmp/undone-1 /tmp/undone-2)"
check "and nothing is left" sh -c "! grep -q '^kernlane_' /proc/modules"
at_once uptime_proc_show uptime_proc_show
case "$results" in
" 0 2" | " 2 0") passed "one function is installed once" ;;
*) failed "one function is installed once" "$results: $(cat /tmp/at-once-1 /tmp/at-once-2)" ;;
esac
grep -q 'uptime_proc_show cannot be replaced: .*installed are kernlane_[0-9]*' /tmp/at-once-1 \
    /tmp/at-once-2 && passed "the other is told by which group" ||
    failed "the other is told by which group" "$(cat /tmp/at-once-1 /tmp/at-once-2)"
check "undone" undo
