/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Calls of two functions when functions of the kernel are entered and left. */
#ifndef KERNLANE_FOLLOW_H
#define KERNLANE_FOLLOW_H

#include <linux/fprobe.h>
#include <linux/kprobes.h>

#include "features.h"

#if defined(CONFIG_FPROBE) && defined(KERNLANE_HAS_PROBE_DATA)
#define KERNLANE_FPROBES
/* The probe's own ftrace_ops can keep the tracer on. */
#ifdef KERNLANE_HAS_PROBE_OPS
#define KERNLANE_PROBE_HOLDS
#endif
#endif

/* The time of an entry, and how long the task had been out until then. */
struct invocation {
	u64 entered;
	u64 out;
};

/**
 * struct follower - follows the invocations of functions
 * @entered: called at an entry; returns whether the return is wanted
 * @left: called at the return of such an invocation
 *
 * Both are called with preemption disabled, from any context.
 */
struct follower {
	bool (*entered)(struct follower *follower, unsigned long entry,
			struct invocation *invocation);
	void (*left)(struct follower *follower, unsigned long entry,
		     const struct invocation *invocation);
#ifdef KERNLANE_FPROBES
	struct fprobe probe;
#else
	struct kretprobe **probes;
	unsigned int nr;
#endif
#ifndef KERNLANE_PROBE_HOLDS
	/* Keeps the tracer on. */
	struct ftrace_ops hold;
#endif
};

/* follow.c: -ENODEV if the tracer is switched off. */
int kernlane_follow(struct follower *follower, unsigned long *entries,
		    unsigned int nr);
/* On an error, the follower may be used for ever. */
int kernlane_unfollow(struct follower *follower);
/* Invocations that were not shown. */
unsigned long kernlane_missed(const struct follower *follower);

#endif
