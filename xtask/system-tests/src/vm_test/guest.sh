# What a kernel must still do when its code has been laid out anew. Each test prints what it saw,
# without addresses and times, so that two kernels can be compared; it fails when a kernel does what
# no good kernel does.

tracing=/sys/kernel/tracing
cd /tmp
echo 512 > $tracing/buffer_size_kb
mkfifo /tmp/silence

# Little work that touches files, pipes, processes and TCP, and ends by itself: tracing makes it
# slow.
work() {
    dd if=/kernlane/data of=/tmp/work bs=4k count=20 2> /dev/null
    cat /tmp/work | md5sum > /dev/null
    ls -l /proc/self > /dev/null 2>&1
    mv /tmp/work /tmp/work2 && rm /tmp/work2
    (sleep 0) & wait $!
    transfer 16 > /dev/null
}

# $1 blocks of 4 KB over TCP; prints their checksum at the other end.
transfer() {
    # A receiver that has nothing more to say would close its end.
    timeout 60 nc -l -p 7777 <> /tmp/silence > /tmp/received &
    receiver=$!
    for try in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
        if grep -q ':1E61 00000000:0000 0A' /proc/net/tcp; then break; fi
        usleep 100000
    done
    dd if=/kernlane/data bs=4k count=$1 2> /dev/null | nc 127.0.0.1 7777
    wait $receiver
    md5sum < /tmp/received
}

# Functions of a stack trace, each by its name: no address, no offset, no suffix of a part.
functions() {
    sed -n -e 's/^\[<0>\] *\([A-Za-z_0-9]*\)[.+].*/\1/p' -e \
        's/^\(\[[^]]*\]\)* *\([A-Za-z_][A-Za-z_0-9]*\)\(\.[^+ ]*\)*+0x.*/\2/p'
}

# The first process of that name.
task() { grep -l -x "$1" /proc/[0-9]*/comm | head -1 | cut -d/ -f3; }

# What the kernel has said since the mark.
log_since() { dmesg | sed "1,/kernlane-mark $1\$/d"; }
mark() { echo "kernlane-mark $1" > /dev/kmsg; }

# The functions on the stack of the first task of that name in the log of sysrq-t.
task_functions() {
    log_since "$1" | sed -e 's/^\[ *[0-9.]*\]\(\[[^]]*\]\)* //' |
        awk -v task="task:$2 " '
            index($0, "task:") == 1 { on = !seen && index($0, task) == 1; if (on) seen = 1 }
            on' |
        grep -v ' ? ' | functions
}

# Waits until $1 (a command) succeeds, for at most $2 seconds.
await() {
    left=$2
    until eval "$1"; do
        left=$((left - 1))
        [ $left -gt 0 ] || { echo "did not come true: $1"; return 1; }
        sleep 1
    done
}

test_kaslr() {
    grep -q nokaslr /proc/cmdline && return 1
    echo "CPUs: $(grep -c ^processor /proc/cpuinfo)"
}

# /kernlane/mitigation is what this machine is there for.
test_mitigations() {
    cd /sys/devices/system/cpu/vulnerabilities
    grep . retbleed spec_rstack_overflow spectre_v2 indirect_target_selection > /tmp/mitigations
    cat /tmp/mitigations
    grep -q -F "$(cat /kernlane/mitigation)" /tmp/mitigations
}

# The kernel clears the flag of five levels when it uses four.
test_page_levels() {
    levels=4
    if grep -q -w la57 /proc/cpuinfo; then levels=5; fi
    echo $levels
    [ $levels = "$(cat /kernlane/page-levels)" ]
}

# Where a weak function was replaced, the kernel shows the distance of the tracer's site to the
# symbol in front of it, which moves (kernel/trace/ftrace.c: FTRACE_INVALID_FUNCTION).
test_traceable_functions() {
    sed 's/ .*//; s/^\(__ftrace_invalid_address__\).*/\1/' $tracing/available_filter_functions |
        sort > /tmp/traceable
    wc -l < /tmp/traceable
    md5sum < /tmp/traceable
}

test_workload() { work && transfer 256; }

# Kernel stacks of processes asleep in different places.
test_stacks() {
    mkfifo /tmp/fifo
    sleep 1000 & sleeping=$!
    cat /tmp/fifo & opening=$!
    (sleep 1000 | cat) & piping=$!
    nc -l -p 7778 & accepting=$!
    sleep 2
    for process in $sleeping $opening $accepting 2 $(task ksoftirqd/0) $(task kswapd0); do
        echo "$(cat /proc/$process/comm):"
        functions < /proc/$process/stack
    done
    echo "self:"
    cat /proc/self/stack | functions
    kill $sleeping $opening $piping $accepting
    killall sleep
    rm /tmp/fifo
} 2> /dev/null

# Backtraces of all tasks and all CPUs, as sysrq prints them.
test_sysrq() {
    sleep 1000 & sleeping=$!
    sleep 1
    mark tasks
    echo t > /proc/sysrq-trigger
    sleep 1
    for task in sleep kthreadd ksoftirqd/0 kswapd0 khugepaged kdevtmpfs; do
        echo "$task:"
        task_functions tasks $task
    done
    mark cpus
    echo l > /proc/sysrq-trigger
    sleep 1
    log_since cpus | functions |
        grep -x -e sysrq_handle_showallcpus -e __handle_sysrq -e write_sysrq_trigger \
            -e vfs_write -e ksys_write -e do_syscall_64 | sort -u
    log_since tasks | grep -c -i 'unreliable\|bad frame\|ORC unwinder' && return 1
    kill $sleeping
} 2> /dev/null

test_function_tracer() {
    for round in 1 2; do
        echo function > $tracing/current_tracer
        ls -l /proc/self > /dev/null
        echo 0 > $tracing/tracing_on
        cat $tracing/trace > /tmp/trace
        echo 1 > $tracing/tracing_on
        echo nop > $tracing/current_tracer
        [ $(wc -l < /tmp/trace) -gt 1000 ] || return 1
        for name in vfs_write tcp_sendmsg do_exit; do
            echo $name > $tracing/set_ftrace_filter
            echo function > $tracing/current_tracer
            work
            grep -q " $name <-" $tracing/trace && echo "traced $name"
            echo nop > $tracing/current_tracer
            echo > $tracing/set_ftrace_filter
        done
    done
}

test_function_graph() {
    echo vfs_write > $tracing/set_graph_function
    echo function_graph > $tracing/current_tracer
    work
    cat $tracing/trace > /tmp/trace
    echo nop > $tracing/current_tracer
    echo > $tracing/set_graph_function
    [ $(grep -c 'vfs_write() {' /tmp/trace) -gt 5 ] && echo "entered vfs_write"
    [ $(grep -c '^.*|  }' /tmp/trace) -gt 5 ] && echo "left it"
}

# At the entries of hot functions, and on every instruction of the first bytes of some.
test_kprobes() {
    hot="vfs_read vfs_write ksys_read do_sys_openat2 tcp_sendmsg tcp_recvmsg tcp_v4_rcv ip_rcv \
        __alloc_skb do_exit wake_up_new_task vfs_statx link_path_walk pipe_write pipe_read \
        shmem_get_folio_gfp handle_mm_fault filemap_map_pages do_syscall_64"
    for name in $hot; do echo "p:entry/$name $name" >> $tracing/kprobe_events &&
        echo "probed $name"; done
    probed=0
    for name in vfs_read vfs_write tcp_sendmsg_locked tcp_v4_rcv link_path_walk; do
        offset=1
        while [ $offset -lt 120 ]; do
            echo "p:inside/${name}_$offset $name+$offset" >> $tracing/kprobe_events &&
                probed=$((probed + 1))
            offset=$((offset + 1))
        done
    done 2> /dev/null
    [ $probed -gt 50 ] || { echo "only $probed probes inside"; return 1; }
    echo 1 > $tracing/events/kprobes/enable 2> /dev/null
    echo 1 > $tracing/events/entry/enable
    echo 1 > $tracing/events/inside/enable
    work
    sleep 2
    work
    for name in vfs_read vfs_write tcp_sendmsg tcp_v4_rcv do_exit; do
        awk -v name=$name '$1 == name && $2 > 0 { print "hit " name }' $tracing/kprobe_profile
    done
    inside=$(awk '/_[0-9]+ / && $2 > 0' $tracing/kprobe_profile | wc -l)
    [ $inside -gt 20 ] || { echo "only $inside probes inside were hit"; return 1; }
    echo 0 > $tracing/events/entry/enable
    echo 0 > $tracing/events/inside/enable
    echo > $tracing/kprobe_events
    work
}

# On the parts that moved: /kernlane/parts lists symbols that only the new kernel has.
test_kprobes_on_parts() {
    wanted=0 got=0
    for name in $(cat /kernlane/parts); do
        wanted=$((wanted + 1))
        echo "p:parts/p$wanted $name" >> $tracing/kprobe_events && got=$((got + 1))
    done 2> /dev/null
    if [ $wanted -gt 0 ]; then
        [ $((got * 2)) -gt $wanted ] ||
            { echo "only $got of $wanted parts can be probed"; return 1; }
        echo 1 > $tracing/events/parts/enable
        work
        sleep 1
        work
        echo 0 > $tracing/events/parts/enable
        echo > $tracing/kprobe_events
    fi
    work
}

# Every tracepoint is a static key in the code around it.
test_tracepoints() {
    for round in 1 2; do
        echo 1 > $tracing/events/enable
        work
        # Reading makes events, too.
        echo 0 > $tracing/tracing_on
        echo 0 > $tracing/events/enable
        cp $tracing/trace /tmp/trace
        [ $(wc -l < /tmp/trace) -gt 500 ] || return 1
        echo > $tracing/trace
        echo 1 > $tracing/tracing_on
        work
        grep -q -v '^#' $tracing/trace && return 1
    done
    for event in sched/sched_switch raw_syscalls/sys_enter kmem/kmem_cache_alloc net/net_dev_xmit;
        do
        echo 1 > $tracing/events/$event/enable
        work
        echo 0 > $tracing/events/$event/enable
        grep -q " ${event#*/}[:(]" $tracing/trace && echo "saw $event"
        echo > $tracing/trace
    done
}

# Bad pointers: each must come back as EFAULT, through the exception table.
test_bad_pointers() { /kernlane/bad-pointers; }

test_modules() {
    for module in loop dummy veth; do insmod /kernlane/modules/$module.ko || return 1; done
    ip link add v0 type veth && ip link set v0 up && ip link show v0 > /dev/null &&
        ip link del v0 && echo "veth works"
    ip link add d0 type dummy && ip addr add 10.9.9.1/24 dev d0 && ip link set d0 up &&
        ping -c 1 -q 10.9.9.1 > /dev/null && echo "dummy works"
    ip link del d0
    dd if=/dev/zero of=/tmp/disk bs=1M count=16 2> /dev/null
    mkdir -p /tmp/mnt && losetup /dev/loop0 /tmp/disk && mke2fs /dev/loop0 > /dev/null &&
        mount -t ext4 /dev/loop0 /tmp/mnt && cp /kernlane/data /tmp/mnt && sync
    echo 3 > /proc/sys/vm/drop_caches
    md5sum < /tmp/mnt/data
    umount /tmp/mnt && losetup -d /dev/loop0
    sleep 1
    for module in loop dummy veth; do rmmod $module || return 1; done
    rm /tmp/disk
}

# The kernel's own sample replaces what /proc/cmdline shows.
test_livepatch() {
    insmod /kernlane/modules/livepatch_sample.ko || return 1
    patch=/sys/kernel/livepatch/livepatch_sample
    await "[ \$(cat $patch/transition) = 0 ]" 60 || return 1
    cat /proc/cmdline
    work
    echo 0 > $patch/enabled
    await "[ ! -e $patch ]" 60 || return 1
    rmmod livepatch_sample
    grep -o console=ttyS0 /proc/cmdline
}

# Up to here nothing was provoked, but that sysrq printed traces.
test_no_complaints() {
    dmesg | grep -e 'WARNING: ' -e 'BUG: ' -e Oops -e 'general protection' -e 'stack segment' \
        -e 'soft lockup' -e 'detected stall' -e 'ORC unwinder' -e unreliable && return 1
    mark=$(dmesg | grep -n 'kernlane-mark tasks' | head -1 | cut -d: -f1)
    dmesg | head -n ${mark:-100000} | grep -E 'Call Trace|RIP:' && return 1
    return 0
}

# A warning and an oops name their place, and the kernel goes on.
test_provoked() {
    insmod /kernlane/modules/lkdtm.ko || return 1
    for what in WARNING WARNING_MESSAGE ACCESS_NULL; do
        mark $what
        (echo $what > /sys/kernel/debug/provoke-crash/DIRECT) 2> /dev/null
        sleep 1
        log_since $what |
            sed -n \
                -e 's/.*\(WARNING: CPU\): [0-9]* PID: [0-9]* at \([^ ]*\) \([^+]*\)+.*/\1 at \2 \3/p' \
                -e 's/.*\(WARNING:\) \([^ ]*:[0-9]*\) at \([^+]*\)+.*/\1 at \2 \3/p' \
                -e 's/.*\(BUG: kernel NULL[^,]*\).*/\1/p' \
            -e 's/.*RIP: 0010:\([A-Za-z_0-9]*\)+.*/in \1/p'
        log_since $what | sed -e 's/^\[ *[0-9.]*\]\(\[[^]]*\]\)* //' |
            sed -n '/Call Trace/,/<\/TASK>/p' | grep -v ' ? ' | functions
    done
    work
}

for name in $(cat /kernlane/tests); do
    echo "@@ begin $name"
    (test_$name)
    echo "@@ end $name $? at $(cut -d' ' -f1 /proc/uptime) s"
done
