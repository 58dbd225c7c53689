/* Opens external libraries when they are first needed, so that programs that do not need them start without them. This is a
 * header because both libtessera and libtessera-cuda need the functions, and neither exports them. */
#ifndef TSR_IO_OPTIONAL_LIBRARY_H
#define TSR_IO_OPTIONAL_LIBRARY_H

#include <dlfcn.h>

#include "tessera/status.h"

typedef struct tsr_library_call {
    const char *name;
    void *slot; /* address of a function pointer of the type that the caller declares */
} tsr_library_call;

static inline tsr_status tsr_library_find(void *library, const char *name, const tsr_library_call *calls, size_t count,
                                          tsr_error *err)
{
    for (size_t i = 0; i < count; i++) {
        void *found = dlsym(library, calls[i].name);
        if (!found) return tsr_raise(err, TSR_E_UNSUPPORTED, TSR_NO_POSITION, "%s has no %s", name, calls[i].name);
        memcpy(calls[i].slot, &found, sizeof found); /* ISO C cannot cast this pointer to a function pointer */
    }
    return TSR_OK;
}

/* Opens the first of the libraries `names` (ended by NULL) that exists, and looks up every call in it. The caller closes it
 * with dlclose; its code stays in the process, because libraries like NCCL have threads that may still be about to end.
 * TSR_E_UNSUPPORTED if none exists, or if it lacks a call; *out is then NULL. */
static inline tsr_status tsr_library_open(const char *const *names, const tsr_library_call *calls, size_t count, void **out,
                                          tsr_error *err)
{
    void *library = NULL;
    *out = NULL;
    for (; *names && !library; names++) library = dlopen(*names, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!library) {
        const char *why = dlerror();
        return tsr_raise(err, TSR_E_UNSUPPORTED, TSR_NO_POSITION, "%s", why ? why : "a library cannot be opened");
    }
    const tsr_status status = tsr_library_find(library, names[-1], calls, count, err);
    if (status == TSR_OK) *out = library;
    else dlclose(library);
    return status;
}

#endif
