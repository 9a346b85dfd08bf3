# What must be as before after many cycles of installing and undoing under load.

MANY=$FUNCTIONS,path_init,may_open,touch_atime,atime_needs_update,terminate_walk,complete_walk
MANY=$MANY,nd_jump_root,set_root,alloc_fd,fd_install,init_file
MANY=$MANY,vfs_fstatat,vfs_getattr_nosec,tcp_data_queue,tcp_rcv_space_adjust,tcp_queue_rcv
MANY=$MANY,tcp_current_mss,tcp_send_mss,skb_copy_datagram_iter
MANY=$MANY,sk_reset_timer,__do_fault,filemap_map_pages,folio_add_lru,lock_vma_under_rcu,do_wp_page
MANY=$MANY,copy_page_range,free_pgtables
MANY=$(existing $MANY)

# Kilobytes: free, of the slabs, of vmalloc (modules' code lies there), per CPU; after caches are
# dropped. Each CPU keeps freed pages on lists of its own, tens of megabytes that come and go and
# that MemFree and MemAvailable leave out: they are free, too.
memory() {
    sync
    echo 3 >/proc/sys/vm/drop_caches
    sleep 1
    kept=$(awk '/^ *count:/ { pages += $2 } END { print 4 * pages }' /proc/zoneinfo)
    awk -v kept="$kept" '
        /^MemFree:/ { $2 += kept }
        /^(MemFree|Slab|VmallocUsed|Percpu):/ { printf "%s %s ", $1, $2 }
        END { print "" }' /proc/meminfo
}

# Loads that find a wrong checksum say so. They take all of the processors that the cycles leave,
# and no more: the kernel's threads that a cycle waits for would otherwise stand in line behind
# them, and a load is switched out in the middle of a copy more often.
loads() { # PROCESSES
    rm -f /tmp/enough
    loading=
    for n in $(seq "$1"); do
        mkdir -p /tmp/load$n
        (cd /tmp/load$n; while [ ! -e /tmp/enough ]; do load && echo >>rounds ||
            echo "FAILED: the load in process $n"; done) &
        renice -n 19 -p $! >/dev/null
        loading="$loading $!"
    done
}

# The functions of MANY, so many cycles in all, an order for each of the parts. /kl/orders: how many
# orders were tried before.
endure() { # CYCLES PROCESSES CYCLES-PER-PART
    rm -rf /tmp/load*
    modules=$(cut -d ' ' -f 1 /proc/modules)
    # What is taken once and kept (slabs, stacks) is taken now.
    apply "$MANY" 1 --cycles 2 >/tmp/out 2>&1 || failed "cycles" "$(tail -n 3 /tmp/out)"
    grep ' functions, ' /tmp/out
    [ "$(sed -n 's/.*: \([0-9]*\) functions, .*/\1/p' /tmp/out)" -ge 60 ] ||
        failed "the group has 60 functions" "$(head -n 1 /tmp/out)"
    load || failed "the load before all cycles" "$?"
    before=$(memory)
    loads "$2"
    left=$1 order=$((1 + $(cat /kl/orders 2>/dev/null || echo 0)))
    while [ "$left" -gt 0 ]; do
        part=$3
        [ "$part" -le "$left" ] || part=$left
        order=$((order + 1))
        apply "$MANY" $order --cycles $part >/tmp/out 2>&1 ||
            { failed "cycles with order $order" "$(tail -n 3 /tmp/out)"; break; }
        grep 'installed and undone' /tmp/out | sed "s/^/order $order: /"
        left=$((left - part))
    done
    sed -n '/processor time/,$p' /tmp/out
    touch /tmp/enough
    wait $loading
    rounds=$(cat /tmp/load*/rounds | wc -l)
    rm -rf /tmp/load*
    [ "$left" = 0 ] && passed "$1 cycles under load in $2 processes, which went round $rounds times"
    after=$(memory)
    echo "kilobytes before: $before"
    echo "kilobytes after:  $after"
    # A module or a page that was kept each time would show.
    echo "$before $after" |
        awk '{ exit !($2 - $10 < 4096 && $12 - $4 < 4096 && $14 - $6 < 1024 &&
            $16 - $8 < 1024) }' &&
        passed "memory is back to what it was" ||
        failed "memory is back to what it was" "$before; $after"
    [ "$(cut -d ' ' -f 1 /proc/modules)" = "$modules" ] && passed "no module is left" ||
        failed "no module is left" "$(lsmod)"
}
