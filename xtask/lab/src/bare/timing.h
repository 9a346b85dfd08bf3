/*
 * For programs that time themselves in core cycles. The time stamp counter does not run at the
 * core's frequency. A chain of dependent additions before and behind what is timed says how many
 * ticks a cycle takes.
 */
#ifndef TIMING_H
#define TIMING_H

/* The time stamp counter, behind all earlier instructions and before all later ones. */
static ulong ticks(void)
{
	unsigned int low, high;

	asm volatile("rdtscp\n\tlfence" : "=a"(low), "=d"(high) : : "rcx", "memory");
	return (ulong)high << 32 | low;
}

/* The ticks of 64 000 dependent additions, one a cycle: CHAIN in processor.rs. */
static ulong chain(void)
{
	ulong begun = ticks();

	asm volatile("mov $1000, %%ecx\n"
		     "mov $1, %%edx\n"
		     ".balign 64\n"
		     "1:\n"
		     ".rept 64\n"
		     "add %%rdx, %%rax\n"
		     ".endr\n"
		     "dec %%ecx\n"
		     "jnz 1b\n"
		     : : : "rax", "rcx", "rdx", "memory");
	return ticks() - begun;
}

/*
 * The ticks of 16 000 no-ops of 6 bytes (NO_OPS in timed.rs): as many in a cycle as the core
 * takes, unless its other thread, which may belong to another virtual machine, takes some.
 */
static ulong no_ops(void)
{
	ulong begun = ticks();

	asm volatile("mov $160, %%ecx\n"
		     ".balign 64\n"
		     "1:\n"
		     ".rept 100\n"
		     ".nops 6\n"
		     ".endr\n"
		     "dec %%ecx\n"
		     "jnz 1b\n"
		     : : : "rcx", "memory");
	return ticks() - begun;
}

#endif
