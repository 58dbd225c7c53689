/* The version of Tessera that a program was compiled with, and the one that it runs with.
 *
 * Example:
 *
 *     if (strcmp(tsr_version(), TSR_VERSION) != 0)
 *         fprintf(stderr, "compiled with tessera %s, running with %s\n", TSR_VERSION, tsr_version());
 *
 * This header is the only place that states the version: CMake, the Python wheel and the manual pages read it from here.
 *
 * Compatibility. While the major version is 0, a minor version may change or remove functions and types, so the shared
 * library's SOVERSION is MAJOR.MINOR (libtessera.so.0.2): a program linked with 0.2 never runs with 0.3 by accident. A patch
 * version changes no declaration. From 1.0 on the SOVERSION is the major version, and a minor version only adds: functions,
 * enumerators, and fields at the end of option structs, which state their size for that (TSR_OPTIONS in tessera/api.h). */
#ifndef TESSERA_VERSION_H
#define TESSERA_VERSION_H

#include "tessera/api.h"

TSR_API_BEGIN

#define TSR_VERSION_MAJOR 0
#define TSR_VERSION_MINOR 2
#define TSR_VERSION_PATCH 0

/* The three numbers as one that grows with the version, for `#if TSR_VERSION_NUMBER >= 200`: 0.2.0 is 200, 1.2.3 is 10203. */
#define TSR_VERSION_NUMBER (TSR_VERSION_MAJOR * 10000 + TSR_VERSION_MINOR * 100 + TSR_VERSION_PATCH)

/* The three numbers as text, "0.2.0". */
#define TSR_VERSION                 TSR_VERSION_TEXT(TSR_VERSION_MAJOR, TSR_VERSION_MINOR, TSR_VERSION_PATCH)
#define TSR_VERSION_TEXT(a, b, c)   TSR_VERSION_QUOTED(a, b, c)
#define TSR_VERSION_QUOTED(a, b, c) #a "." #b "." #c

/* The version of the library that is running, as text: "0.2.0". The string is static. Thread-safe. */
const char *tsr_version(void);

TSR_API_END

#endif
