/*
 * Words for programs without a library.
 */
#ifndef WORDS_H
#define WORDS_H

#include "bare.h"

static ulong length(const char *text)
{
	ulong n = 0;

	while (text[n])
		n++;
	return n;
}

static int same(const char *a, const char *b)
{
	while (*a && *a == *b)
		a++, b++;
	return *a == *b;
}

#endif
