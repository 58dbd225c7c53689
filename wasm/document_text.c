/* Makes documents, and lets JavaScript read them. */
#include <stdlib.h>

#include "shim.h"
#include "tessera/sys/try.h"

struct document {
    char *data;
    size_t size;
    size_t capacity;
};

static tsr_status append(void *ctx, const char *data, size_t size, tsr_error *err)
{
    document *doc = ctx;
    if (size > doc->capacity - doc->size) {
        size_t capacity = doc->capacity * 2 > doc->size + size ? doc->capacity * 2 : doc->size + size + 4096;
        char *grown = realloc(doc->data, capacity);
        if (!grown) return tsr_fail(err, TSR_E_NOMEM, "out of memory for a document of %zu bytes", capacity);
        doc->data = grown;
        doc->capacity = capacity;
    }
    memcpy(doc->data + doc->size, data, size);
    doc->size += size;
    return TSR_OK;
}

/* JavaScript frees a document with tessera_document_free. Data and size belong to it. */
TSR_EXPORT(tessera_document_data) const char *tessera_document_data(const document *doc)
{
    return doc->data;
}
TSR_EXPORT(tessera_document_size) uint32_t tessera_document_size(const document *doc)
{
    return (uint32_t)doc->size;
}
TSR_EXPORT(tessera_document_free) void tessera_document_free(document *doc)
{
    if (doc) free(doc->data);
    free(doc);
}

document *tessera_make_document(tsr_status (*write)(void *ctx, tsr_json *json, tsr_error *err), void *ctx, tsr_error *err)
{
    document *doc = calloc(1, sizeof *doc);
    tsr_json *json = doc ? calloc(1, sizeof *json) : NULL;
    tsr_status status = TSR_E_NOMEM;
    if (json) {
        tsr_json_start(json, append, doc, 1, err);
        status = write(ctx, json, err);
        if (status == TSR_OK) status = tsr_json_finish(json);
    } else {
        tsr_fail(err, TSR_E_NOMEM, "out of memory");
    }
    free(json);
    if (status == TSR_OK) return doc;
    tessera_document_free(doc);
    return NULL;
}
