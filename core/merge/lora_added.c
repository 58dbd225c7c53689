/* Modules that the adapter has but the base lacks, such as the classifier of an adapter that was trained on a language model.
 * The model that PEFT merges then has them. */
#include "codec/json.h"
#include "merge/lora_parts.h"
#include "tessera/sys/cast.h"
#include "tessera/sys/try.h"

/* Inside the modules of the base, a missing name is more likely one that transformers has renamed since. */
static bool is_apart(const tsr_checkpoint *base, tsr_str target)
{
    const tsr_catalog *catalog = &base->catalog;
    const char *dot = memchr(target.data, '.', target.size);
    const tsr_str root = {target.data, dot ? (size_t)(dot - target.data) + 1 : 0};
    for (uint64_t i = 0; i < catalog->entry_count; i++)
        if (tsr_str_starts(catalog->entries[i].fqn, root)) return false;
    return true;
}

bool tsr_lora_adds(const tsr_lora_config *config, const tsr_checkpoint *base, tsr_str target)
{
    const cJSON *saved = cJSON_GetObjectItemCaseSensitive(config->tree, "modules_to_save");
    for (size_t i = target.size; i > 0; i--)
        if (target.data[i - 1] == '.' && tsr_lora_lists(saved, (tsr_str){target.data, i - 1})) return is_apart(base, target);
    return false;
}

/* transformers loads a model in the dtype of its weights, and so a module that it creates has that dtype, too. */
tsr_dtype tsr_lora_base_dtype(const tsr_checkpoint *base)
{
    const tsr_catalog *catalog = &base->catalog;
    for (uint64_t i = 0; i < catalog->entry_count; i++) {
        const tsr_entry *entry = &catalog->entries[i];
        if (entry->kind == TSR_ENTRY_TENSOR && tsr_cast_possible(entry->dtype, TSR_FLOAT32)) return entry->dtype;
    }
    return TSR_DTYPE_NONE;
}

/* Other tasks, such as CAUSAL_LM, keep the output layer. */
static bool classifies(const tsr_lora_config *config)
{
    const cJSON *task = cJSON_GetObjectItemCaseSensitive(config->tree, "task_type");
    const cJSON *of = cJSON_GetObjectItemCaseSensitive(config->tree, "auto_mapping");
    const cJSON *model = cJSON_GetObjectItemCaseSensitive(of, "base_model_class");
    if (cJSON_IsString(task)) return strstr(task->valuestring, "_CLS") || strstr(task->valuestring, "QUESTION");
    return cJSON_IsString(model) && strstr(model->valuestring, "Classification");
}

bool tsr_lora_leaves_out(const tsr_lora_config *config, tsr_str name)
{
    static const char *const outputs[] = {"lm_head.", "cls.", "embed_out.", "language_model.lm_head."};
    size_t i = 0;
    while (i < sizeof outputs / sizeof *outputs && !tsr_str_starts(name, tsr_str_from(outputs[i]))) i++;
    return i < sizeof outputs / sizeof *outputs && classifies(config);
}

static tsr_status add_note(tsr_mapped *m, const char *format, tsr_str first, tsr_error *err)
{
    return tsr_mapped_add_note(m, tsr_arena_format(m->own->arena, err, format, TSR_STR_ARG(first)), err);
}

tsr_status tsr_lora_note_added(tsr_mapped *m, tsr_str first, tsr_error *err)
{
    const tsr_entry *const *left_out = m->dropped.items;
    TSR_TRY(add_note(
        m,
        "tensors that the base does not have are added, such as '%.*s'; state the class of the model that has them in config.json",
        first, err));
    if (!m->dropped.count) return TSR_OK;
    return add_note(m, "the output layer of the base is left out, as in the model that PEFT merges, such as '%.*s'",
                    left_out[0]->fqn, err);
}
