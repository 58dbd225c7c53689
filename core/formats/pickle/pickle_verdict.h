/* What unpickling a file would do beside making data, as findings. A pickle is judged whole: what it calls and then pops, or
 * puts into the memo only, counts like what its root holds.
 *
 *   pickle/unlisted-call    a call of a global that is not on the reader's list, or of something that is not a global
 *   pickle/unlisted-class   instances (warning) or the mere name (note) of such a global; an error where its module can do
 *                           harm however it is used; a warning, too, for names of PyTorch and numpy of which it is not
 *                           known whether they exist (pickle_verdict.c)
 *   pickle/unloadable       an operation at which PyTorch's loader raises, a name that does not exist (such as that of a class
 *                           in which a bit has flipped)
 *   pickle/trailing-bytes   bytes after STOP
 *
 * The techniques against which this holds are those that are published as bypasses of pickle scanners: tests/cli/test_pickles.py
 * lists them. */
#ifndef TSR_FORMATS_PICKLE_PICKLE_VERDICT_H
#define TSR_FORMATS_PICKLE_PICKLE_VERDICT_H

#include "codec/pickle.h"
#include "tessera/findings.h"

typedef struct tsr_verdict tsr_verdict;
struct tsr_verdict {
    const tsr_pickle *pickle;
    const tsr_host *host;
    tsr_findings *findings;
    tsr_str file_name;
    uint64_t pickle_offset; /* of the pickle in the file */
    bool named;             /* what is only named is a note */
    /* Whether a GLOBAL without an id is data as long as it is only named; may be NULL. */
    bool (*is_data)(const tsr_pickle *pickle, tsr_ref global);
    /* Whether an OBJECT or a PERSISTENT that is called stands for a class; may be NULL. */
    bool (*is_class)(const tsr_pickle *pickle, tsr_ref object);
    /* Judges a persistent id; NULL: the loader resolves none. */
    tsr_status (*persistent)(const tsr_verdict *verdict, const tsr_pickle_oddity *odd, tsr_error *err);
    /* A class whose name differs in one bit from one of these does not exist: no program calls its class so. */
    const tsr_pickle_name *listed;
    size_t listed_count;
};

/* Adds a finding on each global that has no id, and on each oddity of the pickle. */
tsr_status tsr_verdict_on_pickle(const tsr_verdict *verdict, tsr_error *err);
/* Adds pickle/unlisted-call: `name` would be called by what is at `position` of the pickle. */
tsr_status tsr_verdict_call(const tsr_verdict *verdict, uint64_t position, tsr_str name, tsr_error *err);
/* Adds pickle/unlisted-call for a GLOBAL or anything else that would be called. */
tsr_status tsr_verdict_call_of(const tsr_verdict *verdict, uint64_t position, tsr_ref callee, tsr_error *err);
/* Adds pickle/unlisted-call for getattr(class, name), as Python 3.11 pickles a member of an enum: `class_` is a GLOBAL.
 * May be loaded on demand (wasm/later.txt). */
tsr_status tsr_verdict_member(const tsr_verdict *verdict, uint64_t position, tsr_ref class_, tsr_str name, tsr_error *err);
/* Adds pickle/unlisted-class for a GLOBAL without an id of which there are instances. */
tsr_status tsr_verdict_instance_of(const tsr_verdict *verdict, uint64_t position, tsr_ref global, tsr_error *err);
/* Adds pickle/unloadable: "loading this file with pickle fails: " and the reason. */
tsr_status tsr_verdict_unloadable(const tsr_verdict *verdict, uint64_t position, const char *reason, tsr_error *err);
/* The same about a GLOBAL: its name, then the reason. */
tsr_status tsr_verdict_unloadable_of(const tsr_verdict *verdict, uint64_t position, tsr_ref global, const char *reason,
                                     tsr_error *err);
/* Adds pickle/trailing-bytes where the pickle, or what it is part of, ends before `size` bytes. */
tsr_status tsr_verdict_end(const tsr_verdict *verdict, uint64_t end, uint64_t size, tsr_error *err);

/* Whether a GLOBAL of this name belongs to what can run programs, reach files or the network, or import and compile
 * code: then not even its name belongs into a checkpoint. */
bool tsr_name_is_dangerous(tsr_str module, tsr_str name);

#endif
