//! Reports of kernels, as they print them, and what is a complaint about installed code.

use super::*;

/// A warning of 6.12, as the kernel prints it, in a copy.
const WARNING: &str = "\
------------[ cut here ]------------
WARNING: CPU: 1 PID: 412 at fs/read_write.c:562 vfs_read.kernlane+0x2a1/0x330 [kernlane_1]
Modules linked in: kernlane_1(OE) kernlane(OE) virtio_net
CPU: 1 UID: 0 PID: 412 Comm: dd Tainted: G           OE      6.12.117+deb12-cloud-amd64 #1
RIP: 0010:vfs_read.kernlane+0x2a1/0x330 [kernlane_1]
Code: 0f 0b e9 77 fe ff ff
Call Trace:
 <TASK>
 ? __warn.cold+0x8e/0xe8
 ksys_read.kernlane+0x6b/0xf0 [kernlane_1]
 do_syscall_64+0x82/0x160
 </TASK>
---[ end trace 0000000000000000 ]---";

/// An oops in a function of the kernel that a copy called.
const OOPS: &str = "\
BUG: kernel NULL pointer dereference, address: 0000000000000010
#PF: supervisor read access in kernel mode
#PF: error_code(0x0000) - not-present page
Oops: Oops: 0000 [#1] PREEMPT SMP NOPTI
CPU: 0 UID: 0 PID: 77 Comm: cat Tainted: G           OE
RIP: 0010:shmem_get_folio_gfp+0x3b/0x690
Call Trace:
 <TASK>
 shmem_file_read_iter.kernlane+0x88/0x2c0 [kernlane_12]
 vfs_read+0x29f/0x370
 </TASK>
---[ end trace 0000000000000000 ]---";

/// A lockup of 6.1 in a copy whose cold part runs.
const LOCKUP: &str = "\
watchdog: BUG: soft lockup - CPU#0 stuck for 26s! [kworker/0:1:9]
Modules linked in: kernlane_3(OE) kernlane(OE)
CPU: 0 PID: 9 Comm: kworker/0:1 Tainted: G           OE      6.1.0-57-cloud-amd64 #1
RIP: 0010:tcp_ack.cold.kernlane+0x12/0x44 [kernlane_3]";

/// A stall that RCU found.
const STALL: &str = "\
rcu: INFO: rcu_preempt self-detected stall on CPU
rcu: \t0-....: (5249 ticks this GP) idle=5d5c/1/0x4000000000000000 softirq=980/980 fqs=2487
CPU: 0 UID: 0 PID: 90 Comm: sh Not tainted 6.12.117+deb12-cloud-amd64 #1
RIP: 0010:dput.kernlane+0x1f/0x90 [kernlane_1]";

/// A warning of 6.16 and later.
const NEWER: &str = "\
WARNING: fs/read_write.c:562 at vfs_read.kernlane+0x2a1/0x330 [kernlane_1], CPU#1: dd/412";

fn all(log: &str) -> Vec<Complaint> {
    let mut complaints = Complaints::default();
    log.lines().filter_map(|line| complaints.add(line)).collect()
}

#[test]
fn a_report_about_a_copy_is_a_complaint_once() {
    for (log, report, place) in [
        (WARNING, "WARNING: CPU: 1 PID: 412 at", "WARNING: CPU: 1 PID: 412 at"),
        (OOPS, "BUG: kernel NULL pointer", "shmem_file_read_iter.kernlane+0x88/0x2c0"),
        (LOCKUP, "watchdog: BUG: soft lockup", "RIP: 0010:tcp_ack.cold.kernlane+0x12/0x44"),
        (STALL, "rcu: INFO: rcu_preempt self-detected", "RIP: 0010:dput.kernlane+0x1f/0x90"),
        (NEWER, "WARNING: fs/read_write.c:562", "WARNING: fs/read_write.c:562"),
    ] {
        let found = all(log);
        let first = &found[0];
        assert!(first.report.starts_with(report), "{first:?}");
        assert!(first.place.starts_with(place), "{first:?}");
        // The rest of an oops begins no report of its own.
        assert!(found.len() == 1, "{found:?}");
    }
    let complaint = &all(OOPS)[0];
    assert_eq!(
        complaint.to_string(),
        "BUG: kernel NULL pointer dereference, address: 0000000000000010 \
         (shmem_file_read_iter.kernlane+0x88/0x2c0 [kernlane_12])"
    );
}

#[test]
fn reports_about_other_code_are_none() {
    let elsewhere = OOPS.replace(".kernlane", "").replace(" [kernlane_12]", "");
    let unreliable = OOPS.replace(" shmem_file_read", " ? shmem_file_read");
    // Copies without a report: a stack that was asked for, a lockup's neighbour.
    let no_report = WARNING.replace("WARNING: ", "");
    // A process may call itself as it likes, and modules are listed.
    let named = "WARNING: CPU: 0 PID: 1 at fs/a.c:1 a+0x1/0x2\n\
                 CPU: 0 PID: 1 Comm: a.kernlane+0x1\nModules linked in: kernlane_1(OE)\n\
                 WARNING: fs/a.c:1 at a+0x1/0x2, CPU#1: b.kernlane+0x1/1";
    let hung = "INFO: task dd:412 blocked for more than 120 seconds.\n\
                Call Trace:\n vfs_read.kernlane+0x1/0x2 [kernlane_1]";
    for log in [&elsewhere, &unreliable, &no_report, named, hung, ""] {
        assert_eq!(all(log), [], "{log}");
    }
}

#[test]
fn a_report_ends_before_what_follows_it() {
    let copy = "vfs_read.kernlane+0x1/0x2 [kernlane_1]";
    let ended = format!("WARNING: CPU: 0 PID: 1 at a.c:1 a+0x1/0x2\n---[ end trace 0 ]---\n{copy}");
    assert_eq!(all(&ended), []);
    let lines = |count| format!("Oops: 1\n{}{copy}", "line\n".repeat(count));
    assert_eq!(all(&lines(MOST_LINES)).len(), 0);
    assert_eq!(all(&lines(MOST_LINES - 2)).len(), 1);
    // Kernlane's own module.
    let own = "kernel BUG at kmod/undo.c:40!\nRIP: 0010:put_back+0x1/0x2 [kernlane]";
    assert_eq!(all(own).len(), 1);
    // With CONFIG_STACKTRACE_BUILD_ID.
    let with_id = "Oops: 1\nRIP: 0010:f+0x1/0x2 [kernlane_7 5f3c]";
    assert_eq!(all(with_id).len(), 1);
}

#[test]
fn two_reports_are_two_complaints() {
    assert_eq!(all(&format!("{WARNING}\n{OOPS}\n{LOCKUP}")).len(), 3);
}

#[test]
fn a_record_has_its_text_behind_its_head() {
    let record = "4,1043,8123456,-,caller=T412;RIP: 0010:f+0x1/0x2 [m]\n SUBSYSTEM=pci\n";
    assert_eq!(text_of_record(record), Some("RIP: 0010:f+0x1/0x2 [m]"));
    assert_eq!(text_of_record("6,1,2,-;a;b"), Some("a;b"));
    for other in ["", "no record", " SUBSYSTEM=a;b", "6,1,2,-;"] {
        assert_eq!(text_of_record(other), None, "{other}");
    }
}

#[test]
fn the_log_of_a_crashed_kernel_has_times() {
    let of =
        |head: &str| -> String { OOPS.lines().map(|line| format!("{head}{line}\n")).collect() };
    for head in ["<1>[   12.345678] ", "[   12.345678] ", "<4>[    8.100000][  T412] ", ""] {
        let found = complaint_in(&of(head)).unwrap();
        assert!(found.place.starts_with("shmem_file_read_iter.kernlane"), "{found:?}");
    }
    // What may be left from earlier calls is no part of the stack here either.
    let unreliable = of("<1>[   12.345678] ").replace(" shmem_file_read", " ? shmem_file_read");
    assert_eq!(complaint_in(&unreliable), None);
}

#[test]
fn logs_of_crashes_are_found_if_they_are_new() {
    let directory = tempfile::tempdir().unwrap();
    let below = directory.path().join("1764400000");
    std::fs::create_dir_all(&below).unwrap();
    let crash = |since| crash_in(directory.path(), since, 2);
    let since = SystemTime::now() - Duration::from_secs(60);
    assert_eq!(crash(since), None);
    std::fs::write(below.join("other.txt"), OOPS).unwrap();
    std::fs::write(below.join("dmesg.txt"), "all is well\n").unwrap();
    assert_eq!(crash(since), None);
    std::fs::write(below.join("dmesg-efi-2"), OOPS).unwrap();
    assert!(crash(since).is_some());
    assert_eq!(crash_in(directory.path(), since, 0), None);
    assert_eq!(crash(SystemTime::now() + Duration::from_secs(60)), None);
    assert_eq!(crash_in(&directory.path().join("none"), since, 2), None);
}
