/* What the parts of the fuzzer share. Linked statically; it runs as root in a guest. */
#ifndef FUZZ_H
#define FUZZ_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernlane.h"

#define ASKERS		4
#define MAX_SLOTS	16
#define COUNT(array)	(sizeof(array) / sizeof((array)[0]))

/*
 * A group as `kernlane live` has asked for it, with its module. The addresses are those of the time
 * of the capture: the copies have moved by @text - @captured_text since.
 */
struct slot {
	char name[KERNLANE_NAME];
	uint8_t number[KERNLANE_NUMBER];
	void *module;
	size_t module_size;
	struct kernlane_function *functions;
	struct kernlane_call *calls;
	uint32_t nr_functions;
	uint32_t nr_calls;
	uint64_t captured_text;
	/* 0 if it is not known. */
	_Atomic uint64_t text;
	/* Held for writing while the module is loaded, for reading while its addresses are used. */
	pthread_rwlock_t lock;
};

/* More bytes than any module of copies has. */
#define LARGEST_MODULE	(4 << 20)

/* slots.c */
extern struct slot slots[MAX_SLOTS];
extern unsigned int nr_slots;
/* One whose copies count; NULL if there is none. */
extern struct slot *counting_slot;
void slots_read(const char *directory);
long slot_load(struct slot *slot);
long slot_unload(struct slot *slot);
/* A captured address of the kernel or of the copies, as it is now. */
uint64_t slot_now(const struct slot *slot, uint64_t captured);

/* capture.c: runs the command and writes down the groups that it installs. */
int capture(const char *directory, char **command);

/* tools.c */
extern _Atomic bool stop;
/* How often failed() was called. */
extern _Atomic unsigned int failures;
void draw_seed(uint64_t seed);
uint64_t draw(void);
/* From 0 to @limit - 1. */
uint32_t below(uint32_t limit);
bool one_in(uint32_t count);
void notes_open(void);
/* Says on the host what comes next, so that it is known after a crash. */
void note(const char *format, ...) __attribute__((format(printf, 1, 2)));
void passed(const char *format, ...) __attribute__((format(printf, 1, 2)));
void failed(const char *format, ...) __attribute__((format(printf, 1, 2)));
void *read_file(const char *path, size_t *size);
/* 0, or an error as a negative number. */
int write_file(const char *path, const char *text);
/* Milliseconds since the guest began. */
uint64_t now_ms(void);
void pause_ms(unsigned int ms);
/* The kernel's symbol of that name. */
uint64_t symbol(const char *name);
/* The name of the function at an address. */
void symbol_at(char *into, size_t size, uint64_t address);
/* "vfs_read+0x9". Not for several threads at once. */
const char *place(uint64_t address);

/* faults.c: memory that is not there for this thread, where the kernel can do that. */
void faults_prepare(void);
/* Decides whether and how the next system calls fail. */
void faults_draw(void);
/* What was decided, for a note. */
const char *faults_name(void);
void faults_begin(void);
void faults_end(void);
bool faults_exist(void);

/* text.c: the kernel's text, byte for byte. */
void text_remember(void);
/* Says every place that differs; gives how many bytes do. */
size_t text_compare(void);

/* ask.c: a thread that sends requests. */
void *ask(void *number);
void ask_prepare(void);
/* The device is closed. */
void ask_end(void);
/* How many requests of each kind had which result. */
void ask_report(void);
uint64_t ask_count(void);
/* The first kind that must succeed, and has not yet; NULL if there is none. */
const char *ask_missing(void);
void ask_forget(void);
/* Interrupts askers by signals, and changes what they ask while the kernel reads it. */
void *disturb(void *seed);

/* build.c: one request. */
struct arena {
	struct kernlane_group *group;
	/* In front of pages that are not there. */
	char *functions_end;
	char *calls_end;
	char *start;
	size_t size;
	/* Of the request that is built. */
	struct kernlane_function *functions;
	struct kernlane_call *calls;
	/* What is changed while the kernel reads, to and fro; NULL for nothing. */
	_Atomic(uint64_t *) flicker;
	uint64_t flicker_by;
};
void arena_make(struct arena *arena, unsigned int number);
/* The whole group, or a part of it. */
void build_valid(struct arena *arena, const struct slot *slot);
void build_mutated(struct arena *arena, const struct slot *slot);
void build_random(struct arena *arena, const struct slot *slot);
void random_name(char *name);
uint64_t odd_pointer(struct arena *arena);
uint64_t odd_address(const struct slot *slot);
uint32_t odd_count(uint32_t right, uint32_t most);

/* commands.c: runs `kernlane live`, several at once, and stops it at its system calls. */
void *command(void *seed);
void commands_report(void);
bool commands_missing(void);

/* flips.c: a vmlinux with one bit of a function's tables flipped. */
#define FLIPPED "/tmp/flipped"
struct flip {
	uint64_t at;
	unsigned char bit;
};
void flips_prepare(void);
/* Only one at a time; @function is what to ask for. False if the function has no such entry. */
bool flip_take(struct flip *flip, const char **function);
void flip_give(const struct flip *flip);
void flips_report(void);

/* neighbours.c: BPF programs and processors that come and go. */
/*
 * Held while a BPF program is attached, and while ftrace is switched off. While ftrace is off,
 * ftrace_shutdown() of Linux 6.12 changes no record: a program that goes leaves FTRACE_FL_REGS in
 * the record of its function. When the next program goes, ftrace warns and ends.
 */
extern pthread_mutex_t program_mutex;
void *attach(void *seed);
void *switch_processors(void *seed);
void neighbours_go(void);
void neighbours_report(void);
bool neighbours_missing(void);

/* others.c: kprobes, tracers, livepatches that come and go. */
void *probe(void *seed);
void *patch(void *seed);
void others_go(void);
void others_report(void);
/* Whether one of them has not come yet. */
bool others_missing(void);

/* load.c: what runs in the copies. */
void load_prepare(void);
void *load(void *seed);
void *sleep_in_pipes(void *seed);
void load_report(void);

#endif
