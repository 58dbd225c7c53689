/* What the documents have in common. */
#ifndef TSR_EXEC_DOCUMENT_PARTS_H
#define TSR_EXEC_DOCUMENT_PARTS_H

#include "tessera/document.h"

/* The array under a "findings" key. A path without data is not printed. */
void tsr_document_findings_array(const tsr_path_findings *paths, size_t count, tsr_json *json);

static inline bool tsr_selection_keeps(const tsr_selection *selection, tsr_str fqn)
{
    return !selection->keeps || selection->keeps(selection->ctx, fqn);
}

#endif
