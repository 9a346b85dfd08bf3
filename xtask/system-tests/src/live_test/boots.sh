#!/bin/sh
# One boot of several that share what is kept: the first keeps a group, the others install it as at
# boot, or leave the kernel as it is. /kl/boot says which, /kl/state.tar.gz has what was kept. Prints
# a line a test, and what is kept now.
. /kl/prelude.sh
. /kl/kept.sh
boot=$(cat /kl/boot)
load
(sleep 1; load) >/dev/null 2>&1
before=$(text)
if [ $boot = first ]; then
    make_kept
    check "it is undone" undo
else
    mkdir -p $KEPT && tar -xzf /kl/state.tar.gz -C $KEPT
    # Not by the function `restore`: what is killed must be the program.
    $K restore $V $STATE --guard >/tmp/guard 2>&1 &
    guard=$!
    settled() { installed || over $guard; }
    await settled || failed "$boot: it is installed, or not" "$(cat /tmp/guard)"
    usleep 500000
    grep -v '^left out\|^neither a package' /tmp/guard
    if installed; then
        passed "$boot: the group is installed"
        [ $boot != upgrade ] || grep -q 'instructions fit' /tmp/guard ||
            failed "it says how much fits" "$(cat /tmp/guard)"
        for n in 1 2 3; do check "$boot: the load in it, $n" load; done
        kill -TERM $guard
        ended $guard || failed "$boot: stopped in order" "$(cat /tmp/guard)"
    else
        ended $guard
        status=$?
        [ $boot = upgrade ] && [ $status = 1 ] && grep -q 'left as it is' /tmp/guard &&
            passed "$boot: the kernel is left as it is" ||
            failed "$boot: the group is installed" "$status: $(cat /tmp/guard)"
    fi
fi
none_installed && passed "$boot: nothing is installed" || failed "nothing is installed" "$boot"
check "$boot: the load afterwards" load
check_text "$boot"
tar -czf /tmp/state.tar.gz -C $KEPT . && echo "state $(base64 /tmp/state.tar.gz | tr -d '\n')"
exit 0
