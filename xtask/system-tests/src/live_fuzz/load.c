/* What runs in the copies meanwhile, and notices when it goes wrong; and who sleeps in them. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fuzz.h"

#define SIZE 30000

static _Atomic unsigned int rounds, sleeps;

static void fill(unsigned char *bytes, size_t size)
{
	size_t n;
	uint64_t seed = draw();

	for (n = 0; n < size; n++)
		bytes[n] = (seed += 0x9e3779b97f4a7c15) >> 56;
}

static bool transfer(int from, int to, const unsigned char *data, size_t size)
{
	unsigned char got[4000];
	size_t done;

	for (done = 0; done < size; done += sizeof(got)) {
		size_t part = size - done < sizeof(got) ? size - done : sizeof(got);

		if (write(to, data + done, part) != (ssize_t)part)
			return false;
		if (read(from, got, part) != (ssize_t)part || memcmp(got, data + done, part))
			return false;
	}
	return true;
}

static bool through_file(const char *path, const unsigned char *data)
{
	unsigned char *got = malloc(SIZE);
	int file = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	struct stat about;
	bool right = file >= 0 && write(file, data, SIZE) == SIZE &&
		     pread(file, got, SIZE, 0) == SIZE && !memcmp(got, data, SIZE) &&
		     !stat(path, &about) && about.st_size == SIZE;

	if (file >= 0)
		close(file);
	free(got);
	return right;
}

static bool through_pipes(const unsigned char *data)
{
	int ends[2], sockets[2];
	bool right;

	if (pipe2(ends, O_CLOEXEC) || socketpair(AF_UNIX, SOCK_STREAM, 0, sockets))
		return false;
	right = transfer(ends[0], ends[1], data, SIZE) && transfer(sockets[0], sockets[1], data, SIZE);
	close(ends[0]);
	close(ends[1]);
	close(sockets[0]);
	close(sockets[1]);
	return right;
}

static bool through_memory(const unsigned char *data)
{
	unsigned char *at = mmap(NULL, 1 << 17, PROT_READ | PROT_WRITE,
				 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	bool right;

	if (at == MAP_FAILED)
		return false;
	memcpy(at + SIZE, data, SIZE);
	right = !memcmp(at + SIZE, data, SIZE) && !at[0] && !at[(1 << 17) - 1];
	munmap(at, 1 << 17);
	return right;
}

static bool names_are_there(void)
{
	DIR *directory = opendir("/proc/self");
	bool found = false;
	struct dirent *entry;

	while (directory && (entry = readdir(directory)))
		found |= !strcmp(entry->d_name, "cmdline");
	if (directory)
		closedir(directory);
	return found && access("/tmp/there/is/none", F_OK) && errno == ENOENT;
}

static char *version, *command_line;

void load_prepare(void)
{
	version = read_file("/proc/version", NULL);
	command_line = read_file("/proc/cmdline", NULL);
}

static bool is_same(const char *path, const char *wanted, const char *other)
{
	char *text = read_file(path, NULL);
	bool right = text && (!strcmp(text, wanted) || !strcmp(text, other));

	free(text);
	return right;
}

/* What functions tell that are small and alike: a wrong copy would tell something else. */
static bool the_kernel_is_told(void)
{
	return is_same("/proc/version", version, version) &&
	       is_same("/proc/cmdline", command_line, "overruled\n");
}

/* An exception's fixup gives the error. */
static bool bad_pointers_are_refused(void)
{
	return select(8, (fd_set *)64, NULL, NULL, NULL) < 0 && errno == EFAULT;
}

void *load(void *seed)
{
	unsigned char *data = malloc(SIZE);
	char path[64];

	draw_seed(*(uint64_t *)seed);
	snprintf(path, sizeof(path), "/tmp/load%d", gettid());
	if (nice(10) < 0)
		perror("nice");
	while (!stop) {
		fill(data, SIZE);
		if (!through_file(path, data))
			failed("what a file gives is what was written");
		if (!through_pipes(data))
			failed("what a pipe gives is what was written");
		if (!through_memory(data))
			failed("what memory holds is what was written");
		if (!names_are_there())
			failed("the names in a directory");
		if (!the_kernel_is_told())
			failed("what the kernel tells of itself is what it told");
		if (!bad_pointers_are_refused())
			failed("a bad pointer for select() gives EFAULT");
		rounds++;
		pause_ms(below(20));
	}
	unlink(path);
	free(data);
	return NULL;
}

/* Reads from a pipe into which @data is the end that is written. */
static void *sleeper(void *end)
{
	char byte = 0;

	if (read(*(int *)end, &byte, 1) != 1 || byte != 'x')
		failed("a reader that slept got what was written");
	return NULL;
}

/* A reader sleeps in copies until there is something to read, for seconds. */
void *sleep_in_pipes(void *seed)
{
	draw_seed(*(uint64_t *)seed);
	while (!stop) {
		pthread_t thread;
		int ends[2];

		if (pipe2(ends, O_CLOEXEC) || pthread_create(&thread, NULL, sleeper, &ends[0]))
			break;
		pause_ms(one_in(4) ? below(9000) : below(400));
		if (write(ends[1], "x", 1) != 1)
			failed("a byte for a reader that sleeps");
		pthread_join(thread, NULL);
		close(ends[0]);
		close(ends[1]);
		sleeps++;
	}
	return NULL;
}

void load_report(void)
{
	printf("load               %u rounds, %u readers slept\n", rounds, sleeps);
	if (!rounds || !sleeps)
		failed("something runs in the copies");
}
