/* Hands bad pointers to system calls and prints what comes back. Needs no library. */

#define NR_READ 0
#define NR_WRITE 1
#define NR_OPEN 2
#define NR_STAT 4
#define NR_POLL 7
#define NR_IOCTL 16
#define NR_READV 19
#define NR_ACCESS 21
#define NR_PIPE 22
#define NR_SELECT 23
#define NR_NANOSLEEP 35
#define NR_GETITIMER 36
#define NR_SOCKET 41
#define NR_CONNECT 42
#define NR_SENDTO 44
#define NR_GETSOCKNAME 51
#define NR_SETSOCKOPT 54
#define NR_EXECVE 59
#define NR_EXIT 60
#define NR_UNAME 63
#define NR_GETCWD 79
#define NR_GETTIMEOFDAY 96
#define NR_SYSINFO 99
#define NR_TIMES 100
#define NR_FUTEX 202
#define NR_GETDENTS64 217
#define NR_CLOCK_GETTIME 228

static long call(long number, long a, long b, long c, long d)
{
	register long r10 asm("r10") = d;
	long result;

	asm volatile("syscall"
		     : "=a"(result)
		     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10)
		     : "rcx", "r11", "memory");
	return result;
}

static void print(const char *name, long address, long result)
{
	char line[80];
	int at = 0;
	char digits[20];
	int count = 0;

	while (*name)
		line[at++] = *name++;
	line[at++] = ' ';
	line[at++] = address == 8 ? 'l' : address < 0 ? 'k' : 'h';
	line[at++] = ' ';
	if (result < 0) {
		line[at++] = '-';
		result = -result;
	}
	do
		digits[count++] = '0' + result % 10;
	while (result /= 10);
	while (count)
		line[at++] = digits[--count];
	line[at++] = '\n';
	call(NR_WRITE, 1, (long)line, at, 0);
}

/* Unmapped low, in the kernel's half, non-canonical. */
static const long bad[] = { 8, -4096 * 16, 0x0008000000000000 };

void _start(void)
{
	int pipe[2];
	long file = call(NR_OPEN, (long)"/etc/passwd", 0, 0, 0);
	long zero = call(NR_OPEN, (long)"/dev/zero", 0, 0, 0);
	long proc = call(NR_OPEN, (long)"/proc/version", 0, 0, 0);
	long directory = call(NR_OPEN, (long)"/proc", 0, 0, 0);
	long udp = call(NR_SOCKET, 2, 2, 0, 0);

	call(NR_PIPE, (long)pipe, 0, 0, 0);
	call(NR_WRITE, pipe[1], (long)"text", 4, 0);
	for (unsigned int i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		long p = bad[i];

#define TRY(name, ...) print(name, p, call(__VA_ARGS__))
		TRY("read zero", NR_READ, zero, p, 100, 0);
		TRY("read proc", NR_READ, proc, p, 100, 0);
		TRY("read pipe", NR_READ, pipe[0], p, 4, 0);
		TRY("read file", NR_READ, file, p, 10, 0);
		TRY("write pipe", NR_WRITE, pipe[1], p, 100, 0);
		TRY("open", NR_OPEN, p, 0, 0, 0);
		TRY("stat path", NR_STAT, p, (long)pipe, 0, 0);
		TRY("stat result", NR_STAT, (long)"/", p, 0, 0);
		TRY("poll", NR_POLL, p, 1, 0, 0);
		TRY("ioctl", NR_IOCTL, 1, 0x5413, p, 0);
		TRY("readv", NR_READV, zero, p, 1, 0);
		TRY("access", NR_ACCESS, p, 0, 0, 0);
		TRY("pipe", NR_PIPE, p, 0, 0, 0);
		TRY("select", NR_SELECT, 1, p, 0, 0);
		TRY("nanosleep", NR_NANOSLEEP, p, 0, 0, 0);
		TRY("getitimer", NR_GETITIMER, 0, p, 0, 0);
		TRY("connect", NR_CONNECT, udp, p, 16, 0);
		TRY("sendto", NR_SENDTO, udp, p, 16, 0);
		TRY("getsockname", NR_GETSOCKNAME, udp, p, p, 0);
		TRY("setsockopt", NR_SETSOCKOPT, udp, 1, 7, p);
		TRY("execve", NR_EXECVE, p, 0, 0, 0);
		TRY("uname", NR_UNAME, p, 0, 0, 0);
		TRY("getcwd", NR_GETCWD, p, 100, 0, 0);
		TRY("gettimeofday", NR_GETTIMEOFDAY, p, p, 0, 0);
		TRY("sysinfo", NR_SYSINFO, p, 0, 0, 0);
		TRY("times", NR_TIMES, p, 0, 0, 0);
		TRY("futex", NR_FUTEX, p, 0, 0, 0);
		TRY("getdents64", NR_GETDENTS64, directory, p, 1000, 0);
		TRY("clock_gettime", NR_CLOCK_GETTIME, 0, p, 0, 0);
	}
	call(NR_EXIT, 0, 0, 0, 0);
}
