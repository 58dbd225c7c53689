/* Paths and addresses as documents and messages show them.
 *
 * Example:
 *
 *     char shown[3 * 64];
 *     if (text.size <= 64) printf("%.*s\n", (int)tsr_uri_redact(text, shown, sizeof shown), shown); */
#ifndef TESSERA_SYS_URI_H
#define TESSERA_SYS_URI_H

#include "tessera/str.h"

TSR_API_BEGIN

/* `path` as the path of a relative URI reference (RFC 3986): bytes that are not allowed there become %XX. Writes at most
 * `capacity` bytes, no NUL; 3 * path.size hold any result, a longer one is cut behind a whole byte of `path`. Returns the
 * bytes written. */
size_t tsr_uri_path(tsr_str path, char *out, size_t capacity);

/* `text` as it may be shown and kept: of a URL (anything that begins with a scheme and "://") the user and password and the
 * fragment are left out, and every value of its query that is not known to be harmless becomes "***". Otherwise the
 * signature of a presigned URL could reach a message, a document or a log. Keys of s3://, gs://, az:// and hf:// have no
 * fragment. Other texts stay as they are. Writes at most `capacity` bytes, no NUL; 3 * text.size hold any result. Returns
 * the bytes written. */
size_t tsr_uri_redact(tsr_str text, char *out, size_t capacity);

TSR_API_END

#endif
