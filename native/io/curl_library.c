/* See curl_library.h. */
#include "io/curl_library.h"

#include "io/sys.h"

tsr_status tsr_curl_open(tsr_curl *out, tsr_error *err)
{
    static const char *const names[] = {"libcurl.so.4", "libcurl-gnutls.so.4", NULL};
    const tsr_library_call calls[] = {
        {"curl_global_init", &out->global_init},
        {"curl_easy_init", &out->easy_init},
        {"curl_easy_reset", &out->easy_reset},
        {"curl_easy_setopt", &out->easy_setopt},
        {"curl_easy_getinfo", &out->easy_getinfo},
        {"curl_easy_cleanup", &out->easy_cleanup},
        {"curl_easy_strerror", &out->easy_strerror},
        {"curl_multi_init", &out->multi_init},
        {"curl_multi_setopt", &out->multi_setopt},
        {"curl_multi_add_handle", &out->multi_add_handle},
        {"curl_multi_remove_handle", &out->multi_remove_handle},
        {"curl_multi_perform", &out->multi_perform},
        {"curl_multi_poll", &out->multi_poll},
        {"curl_multi_wakeup", &out->multi_wakeup},
        {"curl_multi_info_read", &out->multi_info_read},
        {"curl_multi_cleanup", &out->multi_cleanup},
        {"curl_slist_append", &out->slist_append},
        {"curl_slist_free_all", &out->slist_free_all},
    };
    *out = (tsr_curl){0};
    if (tsr_library_open(names, calls, sizeof calls / sizeof *calls, &out->library, NULL) != TSR_OK ||
        out->global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK)
        return tsr_raise(
            err, TSR_E_UNSUPPORTED, TSR_NO_POSITION,
            "URLs are read with libcurl 7.68 or later (libcurl.so.4), which is not installed (Debian: libcurl4)");
    return TSR_OK;
}

void tsr_curl_close(tsr_curl *curl)
{
    if (curl->library) dlclose(curl->library);
    *curl = (tsr_curl){0};
}
