/* Random numbers, messages to the host, files, symbols. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/io.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "fuzz.h"

/* QEMU's debug console: a byte written there is on the host when the instruction has ended. */
#define NOTES_PORT 0xe9

_Atomic bool stop;
_Atomic unsigned int failures;

static __thread uint64_t state = 1;
static pthread_mutex_t notes_mutex = PTHREAD_MUTEX_INITIALIZER;

/* splitmix64 (Steele, Lea, Flood 2014): any seed will do. */
static uint64_t step(uint64_t *at)
{
	uint64_t z = *at += 0x9e3779b97f4a7c15;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
	z = (z ^ z >> 27) * 0x94d049bb133111eb;
	return z ^ z >> 31;
}

void draw_seed(uint64_t seed)
{
	state = seed;
}

uint64_t draw(void)
{
	return step(&state);
}

uint32_t below(uint32_t limit)
{
	return (draw() >> 32) * limit >> 32;
}

bool one_in(uint32_t count)
{
	return !below(count);
}

/* The kernel's way to the port, where a process is not let at ports. */
static int ports = -1;

void notes_open(void)
{
	if (!ioperm(NOTES_PORT, 1, 1))
		return;
	ports = open("/dev/port", O_WRONLY | O_CLOEXEC);
	if (ports < 0) {
		printf("FAILED: no port for notes: %s\n", strerror(errno));
		exit(1);
	}
}

static void tell_port(const char *line, unsigned long size)
{
	unsigned long at;

	if (ports < 0) {
		asm volatile("rep outsb" : "+S"(line), "+c"(size) : "d"(NOTES_PORT) : "memory");
		return;
	}
	/* The byte behind one goes to the port behind. */
	for (at = 0; at < size; at++)
		if (pwrite(ports, line + at, 1, NOTES_PORT) != 1)
			_exit(1);
}

void note(const char *format, ...)
{
	char line[256];
	unsigned long size;
	va_list arguments;
	int length;

	va_start(arguments, format);
	length = vsnprintf(line, sizeof(line) - 1, format, arguments);
	va_end(arguments);
	size = length < (int)sizeof(line) - 1 ? length : (int)sizeof(line) - 2;
	line[size++] = '\n';
	pthread_mutex_lock(&notes_mutex);
	tell_port(line, size);
	pthread_mutex_unlock(&notes_mutex);
}

static void say(const char *what, const char *format, va_list arguments)
{
	char line[512];

	vsnprintf(line, sizeof(line), format, arguments);
	printf("%s: %s\n", what, line);
	fflush(stdout);
}

void passed(const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	say("passed", format, arguments);
	va_end(arguments);
}

void failed(const char *format, ...)
{
	va_list arguments;

	failures++;
	va_start(arguments, format);
	say("FAILED", format, arguments);
	va_end(arguments);
}

void *read_file(const char *path, size_t *size)
{
	size_t room = 1 << 16, used = 0;
	char *bytes = malloc(room);
	int file = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t got;

	if (file < 0 || !bytes) {
		if (file >= 0)
			close(file);
		free(bytes);
		return NULL;
	}
	while ((got = read(file, bytes + used, room - used - 1)) > 0) {
		used += got;
		if (room - used < 2)
			bytes = realloc(bytes, room *= 2);
	}
	close(file);
	bytes[used] = 0;
	if (size)
		*size = used;
	return bytes;
}

int write_file(const char *path, const char *text)
{
	int file = open(path, O_WRONLY | O_CLOEXEC), err = 0;

	if (file < 0)
		return -errno;
	if (write(file, text, strlen(text)) < 0)
		err = -errno;
	close(file);
	return err;
}

uint64_t now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000ull + now.tv_nsec / 1000000;
}

/* A signal ends it early. */
void pause_ms(unsigned int ms)
{
	struct timespec time = { ms / 1000, ms % 1000 * 1000000l };

	nanosleep(&time, NULL);
}

static char *symbols(void)
{
	static char *text;

	if (!text)
		text = read_file("/proc/kallsyms", NULL);
	return text ?: "";
}

uint64_t symbol(const char *name)
{
	size_t length = strlen(name);
	char *line = symbols();

	for (; *line; line = strchrnul(line, '\n') + 1) {
		const char *found = line + 19;

		if (!strncmp(found, name, length) && found[length] == '\n')
			return strtoull(line, NULL, 16);
		if (!strchr(line, '\n'))
			break;
	}
	return 0;
}

/* The last symbol at or before an address, and where it is. */
static char *symbol_before(uint64_t address, uint64_t *best)
{
	char *line, *name = "?";

	for (line = symbols(); *line; line = strchrnul(line, '\n') + 1) {
		uint64_t at = strtoull(line, NULL, 16);

		if (at <= address && at > *best) {
			*best = at;
			name = line + 19;
		}
		if (!strchr(line, '\n'))
			break;
	}
	return name;
}

void symbol_at(char *into, size_t size, uint64_t address)
{
	uint64_t best = 0;
	char *name = symbol_before(address, &best);

	snprintf(into, size, "%.*s", (int)strcspn(name, "\n\t"), name);
}

const char *place(uint64_t address)
{
	static char text[128];
	uint64_t best = 0;
	char *name = symbol_before(address, &best);

	snprintf(text, sizeof(text), "%.*s+0x%llx", (int)strcspn(name, "\n\t"), name,
		 (unsigned long long)(address - best));
	return text;
}
