# Behind the workload's own set-up: replaces functions of the guest's kernel. In front of these
# lines, variables say how.
/bin/sh -e /kernlane/live/set-up
insmod /kernlane/live/kernlane.ko
$program live apply --vmlinux /kernlane/live/vmlinux --profile /kernlane/live/profile.klp \
    --modules /kernlane/modules \
    --share $share --algorithm $algorithm --seed $seed --skip-unfit \
    ${inline:+--inline ${machine:+--machine $machine}} \
    >/kernlane/live/said 2>&1 || { cat /kernlane/live/said; exit 1; }
