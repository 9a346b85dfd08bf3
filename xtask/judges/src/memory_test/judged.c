/*
 * Misses instruction and data caches of every size, in a way that depends on no address that
 * differs from run to run. Needs no library. No instruction reads, changes and writes memory, and
 * no access is wider than a register: so all simulators count the accesses alike.
 */

typedef unsigned long ulong;

#define MARK(n)                                                            \
	asm volatile(".byte 0x0f, 0x1f, 0x84, 0x00; .long 0x4b4c0000 | %c0"  \
		     : : "i"(n) : "memory")

#define FUNCTIONS 2048
#define WORDS (4UL << 17)
#define SIDE 256

/* FUNCTIONS functions of 64 bytes each: 128 KB of code. */
asm(".balign 4096\n"
    "functions:\n"
    ".rept 2048\n"
    ".balign 64\n"
    "lea 1(%rdi,%rdi,2), %rax\n"
    "ret\n"
    ".endr\n"
    ".balign 64\n");
extern char functions[];

static volatile ulong words[WORDS];
static volatile unsigned int matrix[SIDE][SIDE];

static ulong next(ulong state)
{
	return state * 6364136223846793005UL + 1442695040888963407UL;
}

/* Most of 4 MB, at random. */
static void scatter(void)
{
	ulong state = 1;

	for (int i = 0; i < 600000; i++) {
		ulong at = (state = next(state)) >> 33 & (WORDS - 1);
		ulong word = words[at];

		words[at] = word + i;
	}
}

/* 256 KB, against the grain. */
static void transpose(void)
{
	for (int pass = 0; pass < 8; pass++)
		for (int column = 0; column < SIDE; column++)
			for (int row = 0; row < SIDE; row++) {
				unsigned int value = matrix[row][column];

				matrix[row][column] = value + pass;
			}
}

static void call(void)
{
	ulong state = 7, sum = 0;

	for (int i = 0; i < 1000000; i++) {
		ulong number = (state = next(state)) >> 33 & (FUNCTIONS - 1);

		sum += ((ulong (*)(ulong))(functions + 64 * number))(sum);
	}
	words[0] = sum;
}

__attribute__((used)) static void run(void)
{
	/* Page faults come before counting starts. */
	for (ulong i = 0; i < WORDS; i += 512)
		words[i] = i;
	for (int i = 0; i < SIDE; i += 4)
		matrix[i][0] = i;
	MARK(1);
	scatter();
	transpose();
	call();
	MARK(2);
	asm volatile("syscall" : : "a"(60), "D"(0));
}

asm(".globl _start; _start: and $-16, %rsp; call run");
