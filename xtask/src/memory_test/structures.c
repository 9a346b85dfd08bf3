/*
 * Makes the kernel use data of known kinds between the marks: files by the hundred, a pipe, memory, page tables. Needs no library.
 */

#define NR_READ 0
#define NR_WRITE 1
#define NR_OPEN 2
#define NR_CLOSE 3
#define NR_STAT 4
#define NR_MMAP 9
#define NR_PIPE 22
#define NR_FORK 57
#define NR_EXIT 60
#define NR_WAIT4 61
#define NR_MKDIR 83
#define NR_UNLINK 87
#define NR_MOUNT 165

#define FILES 1500
#define PAGES 1500
#define MARK(n) asm volatile(".byte 0x0f, 0x1f, 0x84, 0x00; .long 0x4b4c0000 | %c0" : : "i"(n) : "memory")

static long call(long number, long a, long b, long c, long d, long e, long f)
{
	register long r10 asm("r10") = d;
	register long r8 asm("r8") = e;
	register long r9 asm("r9") = f;
	long result;

	asm volatile("syscall"
		     : "=a"(result)
		     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
		     : "rcx", "r11", "memory");
	if (result < 0 && result > -4096)
		asm volatile("syscall" : : "a"(NR_EXIT), "D"(-result));
	return result;
}

static char name[] = "/made/f0000";
static char block[4096];

static void named(int number)
{
	for (int digit = 10; digit > 6; digit--, number /= 10)
		name[digit] = '0' + number % 10;
}

static void work(void)
{
	int ends[2], status;
	volatile char *memory;

	for (int file = 0; file < FILES; file++) {
		named(file);
		long opened = call(NR_OPEN, (long)name, 0102, 0600, 0, 0, 0);
		call(NR_WRITE, opened, (long)block, sizeof(block), 0, 0, 0);
		call(NR_CLOSE, opened, 0, 0, 0, 0, 0);
	}
	for (int round = 0; round < 2; round++)
		for (int file = 0; file < FILES; file++) {
			named(file);
			call(NR_STAT, (long)name, (long)block, 0, 0, 0, 0);
		}
	call(NR_PIPE, (long)ends, 0, 0, 0, 0, 0);
	for (int round = 0; round < 200; round++) {
		call(NR_WRITE, ends[1], (long)block, sizeof(block), 0, 0, 0);
		call(NR_READ, ends[0], (long)block, sizeof(block), 0, 0, 0);
	}
	/* Private and anonymous. */
	memory = (void *)call(NR_MMAP, 0, PAGES * 4096L, 3, 0x22, -1, 0);
	for (int page = 0; page < PAGES; page++)
		memory[page * 4096L] = 1;
	for (int child = 0; child < 5; child++) {
		long forked = call(NR_FORK, 0, 0, 0, 0, 0, 0);
		if (!forked) {
			memory[child * 4096L] = 2;
			call(NR_EXIT, 0, 0, 0, 0, 0, 0);
		}
		call(NR_WAIT4, forked, (long)&status, 0, 0, 0, 0);
	}
	for (int file = 0; file < FILES; file++) {
		named(file);
		call(NR_UNLINK, (long)name, 0, 0, 0, 0, 0);
	}
}

__attribute__((force_align_arg_pointer)) void _start(void)
{
	call(NR_MKDIR, (long)"/made", 0700, 0, 0, 0, 0);
	call(NR_MOUNT, (long)"none", (long)"/made", (long)"tmpfs", 0, 0, 0);
	MARK(1);
	work();
	MARK(2);
	call(NR_EXIT, 0, 0, 0, 0, 0, 0);
}
