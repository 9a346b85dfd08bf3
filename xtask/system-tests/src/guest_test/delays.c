/* Preloaded into QEMU: its threads are late where that matters most. The vCPU's thread waits a
 * millisecond when it has marked the vCPU halted and not yet counted its instructions. The main
 * thread waits half a millisecond when an event has woken it.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <poll.h>
#include <setjmp.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static void late(long nanoseconds)
{
	struct timespec time = { 0, nanoseconds };

	nanosleep(&time, NULL);
}

static void *next(const char *name)
{
	void *function = dlsym(RTLD_NEXT, name);

	if (!function)
		abort();
	return function;
}

/* QEMU's vCPU leaves its code by a long jump. EXCP_HLT stands near the jump's target then, in
 * CPUState.exception_index.
 */
static void late_if_halting(const void *target)
{
	const int EXCP_HLT = 0x10001, REACH = 512;
	const int *place = target;

	for (int i = -REACH; i < REACH; i++) {
		if (place[i] == EXCP_HLT) {
			late(1000000);
			return;
		}
	}
}

void siglongjmp(sigjmp_buf target, int value)
{
	void (*jump)(sigjmp_buf, int) = next("siglongjmp");

	late_if_halting(target);
	jump(target, value);
	abort();
}

void __longjmp_chk(sigjmp_buf target, int value)
{
	void (*jump)(sigjmp_buf, int) = next("__longjmp_chk");

	late_if_halting(target);
	jump(target, value);
	abort();
}

int ppoll(struct pollfd *files, nfds_t count, const struct timespec *limit, const sigset_t *mask)
{
	int (*wait)(struct pollfd *, nfds_t, const struct timespec *, const sigset_t *) =
		next("ppoll");
	int ready = wait(files, count, limit, mask);

	if (gettid() == getpid())
		late(500000);
	return ready;
}
