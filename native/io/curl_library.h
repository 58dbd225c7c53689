/* libcurl, which is loaded when the first URL is opened, so that programs that open no URL start without it. Include this
 * only if the build found libcurl's headers (TSR_HAVE_CURL). */
#ifndef TSR_IO_CURL_LIBRARY_H
#define TSR_IO_CURL_LIBRARY_H

#define CURL_DISABLE_DEPRECATION 1 /* older releases have only the deprecated names */
#include <curl/curl.h>

#include "tessera/status.h"

/* The functions of libcurl that are used. Their names lack the prefix "curl_". */
typedef struct tsr_curl {
    void *library;
    CURLcode (*global_init)(long flags);
    CURL *(*easy_init)(void);
    void (*easy_reset)(CURL *handle);
    CURLcode (*easy_setopt)(CURL *handle, CURLoption option, ...);
    CURLcode (*easy_getinfo)(CURL *handle, CURLINFO info, ...);
    void (*easy_cleanup)(CURL *handle);
    const char *(*easy_strerror)(CURLcode code);
    CURLM *(*multi_init)(void);
    CURLMcode (*multi_setopt)(CURLM *multi, CURLMoption option, ...);
    CURLMcode (*multi_add_handle)(CURLM *multi, CURL *handle);
    CURLMcode (*multi_remove_handle)(CURLM *multi, CURL *handle);
    CURLMcode (*multi_perform)(CURLM *multi, int *running);
    CURLMcode (*multi_poll)(CURLM *multi, struct curl_waitfd *fds, unsigned fd_count, int milliseconds, int *ready);
    CURLMcode (*multi_wakeup)(CURLM *multi);
    CURLMsg *(*multi_info_read)(CURLM *multi, int *left);
    CURLMcode (*multi_cleanup)(CURLM *multi);
    struct curl_slist *(*slist_append)(struct curl_slist *list, const char *text);
    void (*slist_free_all)(struct curl_slist *list);
} tsr_curl;

/* TSR_E_UNSUPPORTED if libcurl is not installed or is older than 7.68. */
tsr_status tsr_curl_open(tsr_curl *out, tsr_error *err);
void tsr_curl_close(tsr_curl *curl); /* accepts a zeroed one */

#endif
