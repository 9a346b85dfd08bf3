# What tests of kept groups share: which functions, what is installed, and how it is kept.
serve
insmod /kl/kernlane.ko || failed "the module is loaded" "$?"
KEPT=/tmp/keep
# A group is made in less than two minutes.
PATIENCE=600
STATE="--state $KEPT"
restore() { $K restore $V $STATE "$@"; }

# The kernel's text, from the symbols around it.
symbol() { awk -v name="$1" '$3 == name && $2 ~ /[tTdDbB]/ { print $1; exit }' /proc/kallsyms; }
text() { requests text "$(symbol _stext)" "$(symbol _etext)"; }
# A static key may flip when something is used for the first time: everything is used once before.
check_text() { # NAME
    after=$(text)
    [ "$after" = "$before" ] && passed "$1: the text is what it was" ||
        failed "$1: the text is what it was" "$before, then $after"
}
installed() { grep -q '^group .* installed' /dev/kernlane; }
none_installed() { ! installed; }
over() { ! grep -qs '^State:.[^Z]' /proc/$1/status; }
# The status of a process in the background, which is killed if it does not end.
ended() { # PROCESS
    await over $1 || kill -KILL $1
    wait $1
}
# Entries, and where the copies lie, from the first one on.
places() {
    $K status | awk '/→/ { print $1, $4, $3 }' | sort | while read -r entry name copy; do
        [ -n "$first" ] || first=$(printf %d 0x${copy#????????})
        echo $entry $name $(($(printf %d 0x${copy#????????}) - first))
    done
}
# The command ends with STATUS, says WORDS, and nothing is installed.
leaves() { # NAME STATUS WORDS COMMAND…
    name=$1 wanted=$2 words=$3
    shift 3
    "$@" >/tmp/out 2>&1
    status=$?
    if [ $status = $wanted ] && grep -q "$words" /tmp/out && none_installed; then
        passed "$name"
    else
        failed "$name" "status $status: $(tail -n 3 /tmp/out)"
    fi
}

# Counts hot code, installs it with calls inlined, and keeps it.
make_kept() {
    (mkdir -p /tmp/busy; cd /tmp/busy; while [ ! -e /tmp/enough ]; do load >/dev/null 2>&1; done) &
    loading=$!
    ROOTS=$(existing ksys_read,ksys_write,do_sys_openat2)
    check "hot blocks are counted" $K watch $V --root $ROOTS --time 1 --depth 3 -o /tmp/hot.klp
    touch /tmp/enough
    wait $loading
    check "a group is installed" $K apply $V --profile /tmp/hot.klp --root $ROOTS --threshold 1 \
        --function __kernel_read --skip-unfit --inline
    grep 'calls inlined' /tmp/out
    check "it is kept" $K keep $STATE
    cat /tmp/out
}
