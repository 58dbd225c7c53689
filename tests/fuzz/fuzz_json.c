/* Reads any bytes as JSON. They must be rejected with a position inside them, or give a tree that cJSON prints and that the
 * core reads again. */
#include <assert.h>
#include <stdlib.h>

#include "codec/json.h"
#include "tessera/sys/host_calls.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* cJSON prints a lone surrogate as bytes, which are not UTF-8. */
static bool has_surrogate(const char *text)
{
    const unsigned char *b = (const unsigned char *)text;
    while (*b && !(b[0] == 0xED && b[1] >= 0xA0)) b++;
    return *b != 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    tsr_host host = {.allocator = &tsr_allocator_libc, .limits = tsr_limits_default()};
    tsr_error err = {0};
    cJSON *root, *again;
    if (tsr_json_parse((tsr_str){(const char *)data, size}, &host, &root, &err) != TSR_OK) {
        assert(err.status == TSR_E_LIMIT || err.byte_position <= size);
        return 0;
    }
    char *text = cJSON_PrintUnformatted(root);
    assert(text);
    again = NULL;
    assert(tsr_json_parse(tsr_str_from(text), &host, &again, NULL) == TSR_OK || has_surrogate(text));
    cJSON_Delete(again);
    cJSON_Delete(root);
    free(text);
    return 0;
}
