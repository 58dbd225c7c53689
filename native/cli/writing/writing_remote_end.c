/* The last steps of a writing command whose destination is in an object store, whichever process did the units. */
#include "cli/writing/writing_parts.h"
#include "tessera/sys/object_output.h"

tsr_status cli_publish_remote(cli_writing *w, tsr_error *err)
{
    w->conversion = *tsr_work_conversion(w->work);
    tsr_status status = cli_write_sidecar(w, err); /* must precede the marker */
    if (status == TSR_OK) status = tsr_work_finish(w->work, err);
    w->conversion = *tsr_work_conversion(w->work);
    if (status == TSR_OK) status = cli_unchanged(&w->source, err);
    if (status == TSR_OK) status = w->output->publish(w->output, w->conversion.marker, err);
    w->published = status == TSR_OK;
    if (w->published) w->resumed = tsr_object_output_resumed(w->output);
    return status;
}
