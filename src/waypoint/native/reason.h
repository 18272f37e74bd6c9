/* Why a helper program failed: one line, which it prints at its end. */

#ifndef REASON_H
#define REASON_H

#include <stdarg.h>
#include <stdio.h>

static char reason[300];

/* Returns -1. The first reason counts: later ones follow from it. */
__attribute__((format(printf, 1, 2))) static int fail_because(const char *format, ...)
{
	va_list more;

	if (!*reason) {
		va_start(more, format);
		vsnprintf(reason, sizeof(reason), format, more);
		va_end(more);
	}
	return -1;
}

#endif
