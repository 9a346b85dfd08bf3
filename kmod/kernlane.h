/* SPDX-License-Identifier: GPL-2.0-or-later WITH Linux-syscall-note */
/*
 * The interface of /dev/kernlane. A group is a set of functions of the kernel and
 * of its modules, their copies in the text of one loaded module, and the call
 * instructions that will go to the copies. The module checks every request before
 * it writes.
 *
 * read() returns the state as text: two lines about this module, then a line
 * for each group, followed by a line for each of its functions. One program at
 * a time loads and removes modules of copies: the one that holds the device by
 * flock().
 */
#ifndef KERNLANE_H
#define KERNLANE_H

#include <linux/ioctl.h>
#include <linux/types.h>

#define KERNLANE_VERSION	8
#define KERNLANE_NAME		56
#define KERNLANE_NUMBER		16
#define KERNLANE_JUMP		5
#define KERNLANE_MAX_FUNCTIONS	8192
#define KERNLANE_MAX_CALLS	262144
#define KERNLANE_MAX_COUNTERS	65536
#define KERNLANE_MAX_TIMED	512
#define KERNLANE_MAX_MILLISECONDS	3600000

#define KERNLANE_PAIRS		"kernlane's pairs"
#define KERNLANE_PAIRS_ALIGN	16

/**
 * struct kernlane_pair - a function and its copy, as they were proven
 * @entry: distance from this field to the function's entry
 * @copy: distance from this field to the copy
 */
struct kernlane_pair {
	__s32 entry;
	__s32 copy;
};

/**
 * struct kernlane_holder - a copy that runs a function's code without a call
 * @function: index of the pair of the function that is inlined or jumped to
 * @copy: index of the pair whose copy has the function's code in place of a call,
 *	or jumps to a copy that does
 *
 * A tracer that is attached to the function would not see it run there. So the
 * copy gives way to its original when a tracer comes.
 */
struct kernlane_holder {
	__u32 function;
	__u32 copy;
};

/**
 * struct kernlane_pairs - data of a module of copies, which is never written
 * @magic: KERNLANE_PAIRS, without a zero at its end
 * @number: drawn at random when the module was made: no other module has it
 * @nr_pairs: number of pairs
 * @nr_holders: number of struct kernlane_holder behind the last pair
 * @pairs: ascending by the functions' entries
 *
 * It begins at a multiple of KERNLANE_PAIRS_ALIGN. A request is refused for a
 * module with another number, for a function and a copy that are not a pair, and
 * without a function that a holder names.
 */
struct kernlane_pairs {
	__u8 magic[16];
	__u8 number[KERNLANE_NUMBER];
	__u64 nr_pairs;
	__u64 nr_holders;
	struct kernlane_pair pairs[];
};

/**
 * struct kernlane_function - a function and its copy
 * @entry: address of the function
 * @copy: address in the module of the copy of the code behind the function
 *	tracer's site
 * @patch_at: bytes from @entry to the instruction behind the tracer's site; a
 *	jump is written there
 * @expected: the bytes that must be there now
 * @carried: 1 if only copies call the copy: nothing is written at @entry, and
 *	@expected does not matter; else 0
 * @reserved: zero
 */
struct kernlane_function {
	__u64 entry;
	__u64 copy;
	__u8 patch_at;
	__u8 expected[KERNLANE_JUMP];
	__u8 carried;
	__u8 reserved;
};

/**
 * struct kernlane_call - a direct call or jump of five bytes to a function
 * @site: address of the instruction. In the kernel, or in a module that a function
 *	of the group is from, it must now go to the function, which is not carried;
 *	in the module of copies to the copy.
 * @function: index into the group's functions
 * @reserved: zero
 */
struct kernlane_call {
	__u64 site;
	__u32 function;
	__u32 reserved;
};

/**
 * struct kernlane_group - a request to install or to undo a group
 * @module: name of the module that contains the copies, with a zero at its end
 * @number: the number of that module, as in struct kernlane_pairs
 * @functions: pointer to struct kernlane_function, one of them not carried
 * @calls: pointer to struct kernlane_call
 * @nr_functions: number of functions
 * @nr_calls: number of calls
 * @reserved: zero
 * @bad_address: set on failure: the address at which the kernel is not what
 *	the group expects (EBUSY), at which a kprobe is registered
 *	(EADDRINUSE), which a tracer or a BPF program is attached to (EUSERS),
 *	which must not be replaced (EPERM), or which the module does not
 *	accept; 0 if the failure has no address
 *
 * EUCLEAN: installing failed after the first jump was written, and then another
 * tool (a kprobe, say, at @bad_address) kept the module from restoring
 * everything. The group is there, and can be undone when that tool is gone.
 *
 * EAGAIN: the group is undone, but a task may be in a copy. If that is the
 * caller, which came through a copy of ioctl(), it has left it when it asks
 * again.
 *
 * Undoing a group needs only its name and its number.
 */
struct kernlane_group {
	char module[KERNLANE_NAME];
	__u8 number[KERNLANE_NUMBER];
	__u64 functions;
	__u64 calls;
	__u32 nr_functions;
	__u32 nr_calls;
	__u64 reserved;
	__u64 bad_address;
};

/**
 * struct kernlane_hold - a request to hold a module
 * @module: its name, with a zero at its end
 * @text: an address in its text
 *
 * The module cannot be removed before the file is closed. Without it, no function
 * of the module can be replaced or measured: hold it, then read it. ENOENT: the
 * module is gone, or not there any more. EPERM: it is a livepatch, has copies, or
 * is this module.
 *
 * The kernel enters a module of copies as a user of each module that one of its
 * functions is from. So these stay as long as the copies, also without a file.
 */
struct kernlane_hold {
	char module[KERNLANE_NAME];
	__u64 text;
};

#define KERNLANE_COOKIES	"kernlane cookies"
#define KERNLANE_COOKIES_ALIGN	16
#define KERNLANE_COUNTERS_A_COOKIE	2048

/**
 * struct kernlane_cookies - data of a module whose copies have counters
 * @magic: KERNLANE_COOKIES, without a zero at its end
 * @nr_counters: number of counters, of eight bytes each
 * @offsets: written when the group is installed: the per-CPU memory of each
 *	KERNLANE_COUNTERS_A_COOKIE counters
 *
 * It begins at a multiple of KERNLANE_COOKIES_ALIGN. Behind the last offset
 * KERNLANE_COOKIES stands once more.
 */
struct kernlane_cookies {
	__u8 magic[16];
	__u64 nr_counters;
	__u64 offsets[];
};

/**
 * struct kernlane_counters - a request for the counters of a group
 * @module: the group's name, with a zero at its end
 * @number: the group's number
 * @sums: pointer to @nr sums over all CPUs, written
 * @nr: number of counters to read, from the first on
 * @reserved: zero
 */
struct kernlane_counters {
	char module[KERNLANE_NAME];
	__u8 number[KERNLANE_NUMBER];
	__u64 sums;
	__u32 nr;
	__u32 reserved;
};

/**
 * struct kernlane_time - the sums over the invocations of one function
 * @entered: invocations that began during the measurement
 * @returned: those of them that also ended during it; the times are theirs
 * @missed: invocations that were not followed, for lack of room for tasks
 * @ns: nanoseconds from entry to return
 * @out_ns: the part of @ns in which the task was switched out
 */
struct kernlane_time {
	__u64 entered;
	__u64 returned;
	__u64 missed;
	__u64 ns;
	__u64 out_ns;
};

/**
 * struct kernlane_timing - a request to measure functions
 * @entries: pointer to @nr addresses of functions, ascending, each with a site
 *	of the function tracer, in the kernel or in a module that the file holds
 * @times: pointer to @nr struct kernlane_time, written at the end
 * @nr: number of functions
 * @milliseconds: duration; a signal ends the measurement without a result
 * @missed: written at the end: invocations of all these functions that the
 *	kernel's probe did not show, since too many were under way at once, or
 *	since they came while a probe was handled; they are in no
 *	struct kernlane_time
 */
struct kernlane_timing {
	__u64 entries;
	__u64 times;
	__u32 nr;
	__u32 milliseconds;
	__u64 missed;
};

#define KERNLANE_INSTALL	_IOWR(0xb7, 1, struct kernlane_group)
#define KERNLANE_UNDO		_IOWR(0xb7, 2, struct kernlane_group)
#define KERNLANE_COUNTERS	_IOW(0xb7, 3, struct kernlane_counters)
#define KERNLANE_TIME		_IOWR(0xb7, 4, struct kernlane_timing)
/*
 * With 1: modules that the caller loads have their text in large pages, if its
 * size is a multiple of KERNLANE_LARGE_PAGE and the kernel has such pages; until
 * it is called with 0, or the file is closed. EOPNOTSUPP: modules cannot be placed
 * in this kernel. EBUSY: another task has asked for it.
 */
#define KERNLANE_LARGE_TEXT	_IO(0xb7, 5)
#define KERNLANE_HOLD		_IOW(0xb7, 6, struct kernlane_hold)
#define KERNLANE_LARGE_PAGE	0x200000

#endif
