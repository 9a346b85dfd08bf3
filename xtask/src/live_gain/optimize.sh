# Counted once: with a nanosecond an instruction, counting takes long.
# The load goes round while `kernlane live auto` looks at it; /kl/how says whether it installs what it finds, or only counts.
insmod /kl/kernlane.ko
rm -f /run/enough
(while [ ! -e /run/enough ]; do sh -e /kl/load || exit 1; done) >/run/training 2>&1 &
training=$!
sleep 1
if ! /kl/kernlane live auto --vmlinux /kl/vmlinux --sample 2 --time 0.2 --once --report /run/gain.json $(cat /kl/how) </dev/null >/run/auto 2>&1; then
    cat /run/auto
    exit 1
fi
touch /run/enough
wait $training || { cat /run/training; exit 1; }
