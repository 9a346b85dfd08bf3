/* Two threads with names of their own, each on a CPU of its own, write two words of one line. */

#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>

#define TIMES 20000

struct pair {
	volatile long mine, yours;
} __attribute__((aligned(64)));

struct pair counters;
static volatile int ready;

static void *count(void *which)
{
	long number = (long)which;
	volatile long *own = number ? &counters.yours : &counters.mine;
	cpu_set_t one;

	CPU_ZERO(&one);
	CPU_SET(number, &one);
	sched_setaffinity(0, sizeof(one), &one);
	pthread_setname_np(pthread_self(), number ? "yours" : "mine");
	__atomic_fetch_add(&ready, 1, __ATOMIC_SEQ_CST);
	while (ready < 2)
		;
	for (int n = 0; n < TIMES; n++)
		++*own;
	return 0;
}

int main(void)
{
	pthread_t threads[2];

	for (long n = 0; n < 2; n++)
		if (pthread_create(&threads[n], 0, count, (void *)n))
			return 1;
	for (int n = 0; n < 2; n++)
		pthread_join(threads[n], 0);
	return counters.mine != TIMES || counters.yours != TIMES;
}
