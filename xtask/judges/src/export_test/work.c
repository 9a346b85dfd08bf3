// A program without a library, with loops, calls, an inlined function and code that never runs.
static volatile int sink;

__attribute__((noinline)) int collatz(unsigned n)
{
	int steps = 0;

	while (n != 1) {
		n = n % 2 ? 3 * n + 1 : n / 2;
		steps++;
	}
	return steps;
}

__attribute__((noinline)) int rare(int n)
{
	return n * 31;
}

static inline int clamp(int n)
{
	if (n > 100)
		return 100;
	return n;
}

__attribute__((noinline)) int work(int n)
{
	int sum = 0;

	for (int i = 1; i <= n; i++) {
		if (i % 1000 == 0)
			sum += rare(i);
		sum += clamp(collatz(i));
	}
	return sum;
}

void _start(void)
{
	sink = work(10000);
	__asm__ volatile("syscall" : : "a"(231L), "D"(0L));
	__builtin_unreachable();
}
