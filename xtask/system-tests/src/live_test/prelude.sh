# What the tests in the guest share: functions to replace, a load that checks what it does, and how
# a test says its result.
export PATH=$PATH:/kl
K="kernlane live"
V="--vmlinux /kl/vmlinux"
FUNCTIONS=vfs_read,vfs_write,ksys_read,ksys_write,rw_verify_area,do_filp_open,path_openat
FUNCTIONS=$FUNCTIONS,link_path_walk,do_dentry_open,vfs_open,filemap_read
FUNCTIONS=$FUNCTIONS,shmem_file_read_iter,shmem_write_end,do_sys_openat2,alloc_empty_file,fput,dput
FUNCTIONS=$FUNCTIONS,mntput,kmem_cache_alloc_noprof,kmem_cache_alloc,kmem_cache_free
FUNCTIONS=$FUNCTIONS,handle_mm_fault,do_user_addr_fault,anon_pipe_buf_release,pipe_read,pipe_write
FUNCTIONS=$FUNCTIONS,vfs_getattr,vfs_statx,getname_flags,walk_component
FUNCTIONS=$FUNCTIONS,lookup_fast,step_into,path_lookupat,filename_lookup,generic_permission
FUNCTIONS=$FUNCTIONS,inode_permission,copy_page_to_iter,folio_mark_accessed
FUNCTIONS=$FUNCTIONS,shmem_get_folio_gfp,filemap_get_entry,do_anonymous_page,wp_page_copy
FUNCTIONS=$FUNCTIONS,unmap_page_range,zap_present_ptes,vma_alloc_folio_noprof
FUNCTIONS=$FUNCTIONS,tcp_v4_rcv,tcp_rcv_established,tcp_sendmsg_locked,tcp_recvmsg_locked
FUNCTIONS=$FUNCTIONS,tcp_write_xmit,tcp_ack,__tcp_transmit_skb,ip_rcv,ip_local_deliver
FUNCTIONS=$FUNCTIONS,__ip_queue_xmit,ip_finish_output2,sock_def_readable,sock_recvmsg
FUNCTIONS=$FUNCTIONS,unix_stream_sendmsg,kfree_skb_list_reason,skb_release_data
FUNCTIONS=$FUNCTIONS,__netif_receive_skb_core
cd /tmp

# Compilers make parts and copies of functions as they please: those that exist, once.
existing() { # FUNCTIONS
    echo "$1" | tr , '\n' | awk '
        NR == FNR { wanted[$1]; next }
        $2 ~ /^[tT]$/ && $3 in wanted { seen[$3]++ }
        END { for (name in seen) if (seen[name] == 1) { printf "%s%s", comma, name; comma = "," } }
        ' - /proc/kallsyms
}
FUNCTIONS=$(existing $FUNCTIONS)
# The kernel's own text poking, by its names before 6.16 and since.
POKING=$(existing text_poke_bp,smp_text_poke_single)

passed() { echo "passed: $1"; }
failed() { echo "FAILED: $1: $2"; }
check() { # NAME COMMAND…
    name=$1
    shift
    if "$@" >/tmp/out 2>&1; then passed "$name"; else failed "$name" "$(tail -n 3 /tmp/out)"; fi
}
# The command must end with status 2 and say WORDS.
refused() { # NAME WORDS COMMAND…
    name=$1 words=$2
    shift 2
    "$@" >/tmp/out 2>&1
    status=$?
    # In the guest no package vouches for the vmlinux, which is said first.
    lines=$(grep -vc '^neither a package' /tmp/out)
    if [ $status = 2 ] && grep -q "$words" /tmp/out && [ "$lines" -le 2 ]; then
        passed "$name"
    else
        failed "$name" "status $status: $(tail -n 3 /tmp/out)"
    fi
}
apply() { # FUNCTIONS SEED [OPTION]…
    functions=$1 seed=$2
    shift 2
    $K apply $V --function "$functions" --algorithm random --seed "$seed" --skip-unfit "$@"
}
# Reads, writes and receives in the current directory, and compares. serve comes first.
load() {
    dd if=/tmp/data of=copy bs=3000 2>/dev/null || return 1
    cmp /tmp/data copy || return 1
    [ "$(cat /tmp/data | cat | md5sum)" = "$sum" ] || return 1
    find /proc/self /sys/kernel/mm -xdev >/dev/null 2>&1
    wget -q -O got http://127.0.0.1/data && cmp /tmp/data got
}

# What load reads.
serve() {
    dd if=/dev/urandom of=/tmp/data bs=4096 count=300 2>/dev/null
    sum=$(md5sum </tmp/data)
    mkdir -p /tmp/www && cp /tmp/data /tmp/www/data && httpd -p 127.0.0.1:80 -h /tmp/www
}

T=/sys/kernel/tracing
# Undoes everything. Somebody may be in a copy for a moment.
undo() {
    for try in 1 2 3 4 5 6; do
        $K undo >/tmp/undone 2>&1 && return 0
        sleep 1
    done
    cat /tmp/undone
    return 1
}
# Waits until the command succeeds, for at most 20 seconds, or PATIENCE fifths of a second.
await() { # COMMAND…
    left=${PATIENCE:-100}
    until "$@" >/dev/null 2>&1; do
        left=$((left - 1))
        [ $left -gt 0 ] || return 1
        usleep 200000
    done
}
