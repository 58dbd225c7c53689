/* Names of an adapter's tensors, and of the base's. */
#include "merge/lora_parts.h"

#include "base/line.h"
#include "codec/json.h"
#include "mapping/mapping_rules.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/text.h"
#include "tessera/sys/try.h"

#define SEVERAL (UINT32_MAX - 1)

/* ---- names of the adapter ---- */

typedef struct ending {
    const char *first, *last; /* before and after the name of the adapter */
    tsr_lora_kind kind;
} ending;

/* In a state dict, magnitudes are in a module of their own. */
static const ending endings[] = {{".lora_A", ".weight", TSR_LORA_A},
                                 {".lora_B", ".weight", TSR_LORA_B},
                                 {".lora_B", ".bias", TSR_LORA_BIAS},
                                 {".lora_embedding_A", "", TSR_LORA_EMBEDDING_A},
                                 {".lora_embedding_B", "", TSR_LORA_EMBEDDING_B},
                                 {".lora_magnitude_vector", ".weight", TSR_LORA_MAGNITUDE},
                                 {".lora_magnitude_vector", "", TSR_LORA_MAGNITUDE},
                                 {".token_adapter.trainable_tokens_delta", "", TSR_LORA_TOKENS},
                                 {".token_adapter.trainable_tokens_original", "", TSR_LORA_COPY},
                                 {".token_adapter.base_layer", ".weight", TSR_LORA_COPY}};

/* Finds `part` in `text` where it ends or is followed by a dot. SIZE_MAX if it is not there. */
static size_t find(tsr_str text, tsr_str part)
{
    for (size_t at = 0; at + part.size <= text.size; at++)
        if (!memcmp(text.data + at, part.data, part.size) &&
            (at + part.size == text.size || text.data[at + part.size] == '.'))
            return at;
    return SIZE_MAX;
}

tsr_lora_kind tsr_lora_kind_of(tsr_str name, tsr_str *module, tsr_str *adapter)
{
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++) {
        const tsr_str first = tsr_str_from(endings[i].first), last = tsr_str_from(endings[i].last);
        const size_t at = find(name, first);
        if (at == SIZE_MAX || !tsr_str_ends(name, last) || name.size < at + first.size + last.size) continue;
        tsr_str middle = {name.data + at + first.size, name.size - at - first.size - last.size};
        if (middle.size) middle.data++, middle.size--; /* its dot */
        if (middle.size && memchr(middle.data, '.', middle.size)) continue;
        *module = (tsr_str){name.data, at};
        *adapter = middle;
        return endings[i].kind;
    }
    const bool other = tsr_str_contains(name, TSR_STR(".lora_")) || tsr_str_contains(name, TSR_STR("token_adapter"));
    return other ? TSR_LORA_OTHER : TSR_LORA_WHOLE;
}

const tsr_part *tsr_lora_range(const tsr_checkpoint *adapter, tsr_lora_names *names, uint64_t *first, uint64_t *end)
{
    const tsr_catalog *catalog = &adapter->catalog;
    const tsr_part *model = NULL;
    for (size_t p = 0; p < catalog->part_count; p++)
        if (tsr_str_equal(catalog->parts[p].name, TSR_STR("model"))) model = &catalog->parts[p];
    *first = model ? model->first_entry : 0;
    *end = model ? *first + model->entry_count : catalog->entry_count;
    if (model) names->part = model->name.size + 1;
    return model;
}

tsr_str tsr_lora_sibling(const tsr_lora_names *names, tsr_str module, tsr_lora_kind kind, tsr_error *err)
{
    const ending *e = endings;
    while (e->kind != kind) e++;
    return tsr_arena_format(names->m->own->arena, err, "%.*s%s%s%.*s%s", TSR_STR_ARG(module), e->first,
                            names->adapter.size ? "." : "", TSR_STR_ARG(names->adapter), e->last);
}

tsr_status tsr_lora_names_note(tsr_lora_names *names, tsr_str name, tsr_error *err)
{
    tsr_str module, adapter;
    const tsr_lora_kind kind = tsr_lora_kind_of(name, &module, &adapter);
    if (kind == TSR_LORA_WHOLE || kind == TSR_LORA_OTHER || kind == TSR_LORA_COPY) return TSR_OK;
    const bool is_first = !names->adapter.data;
    TSR_FAIL_IF(!is_first && !tsr_str_equal(names->adapter, adapter), err, TSR_E_UNSUPPORTED,
                "the directory has the tensors of several adapters, '%.*s' and '%.*s'; save the one to fold alone",
                TSR_STR_ARG(names->adapter), TSR_STR_ARG(adapter));
    names->adapter = adapter;
    return TSR_OK;
}

void tsr_lora_names_close(tsr_lora_names *names)
{
    for (unsigned i = 0; i < TSR_LORA_COMPARISONS; i++) {
        tsr_map_free(names->stored[i]);
        names->stored[i] = NULL;
    }
}

/* ---- names of the base ---- */

/* Modules of PyTorch that wrap others and show in the names of a state dict. */
#define WRAPPERS "_checkpoint_wrapped_module\0_fsdp_wrapped_module\0_orig_mod\0"
/* Modules that PEFT puts around those of the base. */
#define PEFT_WRAPPERS "base_layer\0original_module\0"
/* Modules of transformers' models that have other modules of the model in them, and that it inserts or leaves out when it loads a
 * model: the base model of one with a head, and the language model of one that sees or hears. Source: transformers 5.24,
 * conversion_mapping.py and base_model_prefix. */
#define OUTER "model\0"
#define INNER "model\0language_model\0thinker\0vision_model\0"

/* Removes everything up to PEFT's prefix, if the name has it at the start of a component. */
static void leave_out_prefix(tsr_str *name)
{
    const tsr_str prefix = TSR_STR(TSR_LORA_PREFIX);
    for (size_t at = 0; at + prefix.size <= name->size; at++) {
        if (memcmp(name->data + at, prefix.data, prefix.size) != 0 || (at && name->data[at - 1] != '.')) continue;
        *name = tsr_str_after(*name, at + prefix.size);
        return;
    }
}

tsr_status tsr_lora_base_name(const tsr_lora_names *names, tsr_str name, tsr_str *out, tsr_error *err)
{
    static const char saved[] = ".modules_to_save", wrappers[] = PEFT_WRAPPERS "modules_to_save\0";
    tsr_arena *arena = names->m->own->arena;
    const tsr_str adapter = names->adapter.size ? names->adapter : TSR_STR("default");
    *out = tsr_str_after(name, names->part);
    leave_out_prefix(out);
    /* The name of the adapter is left in the biases of nested modules, such as CLASSIFIER.modules_to_save.default.dense.bias. */
    const size_t at = find(*out, tsr_str_from(saved));
    if (at != SIZE_MAX) {
        tsr_str tail = {out->data + at + sizeof saved - 1, out->size - at - (sizeof saved - 1)};
        if (tail.size > adapter.size && !memcmp(tail.data + 1, adapter.data, adapter.size) &&
            (tail.size == adapter.size + 1 || tail.data[adapter.size + 1] == '.'))
            tail.data += adapter.size + 1, tail.size -= adapter.size + 1;
        *out = tsr_arena_format(arena, err, "%.*s%.*s", (int)at, out->data, TSR_STR_ARG(tail));
        if (!out->data) return TSR_E_NOMEM;
    }
    *out = tsr_name_without(arena, *out, wrappers, err);
    if (out->data && !tsr_checkpoint_entry(names->m->source, *out)) *out = tsr_name_without(arena, *out, WRAPPERS, err);
    return out->data ? TSR_OK : TSR_E_NOMEM;
}

/* Whether the base has other models next to its language model: as config.json describes them, or, without it, by their names. */
static bool has_inner_model(const tsr_mapped *m)
{
    static const char *const configs[] = {"text_config", "vision_config", "audio_config", "thinker_config"};
    static const char towers[] = "visual\0vision_tower\0vision_model\0audio_tower\0multi_modal_projector\0";
    for (size_t i = 0; i < sizeof configs / sizeof *configs; i++)
        if (cJSON_IsObject(tsr_mapped_setting(m, configs[i]))) return true;
    const tsr_catalog *catalog = &m->source->catalog;
    for (uint64_t i = 0; !m->config && i < catalog->entry_count; i++) {
        tsr_str name = catalog->entries[i].fqn;
        if (tsr_str_starts(name, TSR_STR("model."))) name.data += 6, name.size -= 6;
        const char *dot = memchr(name.data, '.', name.size);
        if (dot && tsr_is_among((tsr_str){name.data, (size_t)(dot - name.data)}, towers)) return true;
    }
    return false;
}

enum { LONGEST_NUMBER = 20 };

/* Whether a pattern, in which '#' is a number, is at `at` of a name, as whole components. *end is behind it. */
static bool is_at(tsr_str name, size_t at, tsr_str pattern, size_t *end, tsr_str *number)
{
    if (at && name.data[at - 1] != '.') return false;
    *end = at;
    for (size_t i = 0; i < pattern.size; i++) {
        const size_t from = *end;
        if (pattern.data[i] == '#') {
            while (*end < name.size && *end - from < LONGEST_NUMBER && tsr_is_digit(name.data[*end])) ++*end;
            *number = (tsr_str){name.data + from, *end - from};
        } else if (*end < name.size && name.data[*end] == pattern.data[i]) {
            ++*end;
        }
        if (*end == from) return false;
    }
    return *end == name.size || name.data[*end] == '.';
}

/* Replaces `old`, where it is whole components, by something that is not longer; by nothing also without the dot behind it. */
static void replace(tsr_str *name, char *text, tsr_str old, tsr_str new)
{
    char digits[LONGEST_NUMBER];
    tsr_str number = {digits, 0};
    for (size_t at = 0, end; at < name->size; at++) {
        if (!is_at(*name, at, old, &end, &number)) continue;
        const size_t rest = end + (new.size == 0 && end < name->size);
        size_t size = 0;
        memcpy(digits, number.data, number.size);
        for (size_t i = 0; i < new.size; i++) {
            const tsr_str put = new.data[i] == '#' ? (tsr_str){digits, number.size} : (tsr_str){&new.data[i], 1};
            memcpy(text + at + size, put.data, put.size);
            size += put.size;
        }
        memmove(text + at + size, text + rest, name->size - rest);
        name->size -= rest - at - size;
    }
}

/* `pairs` are names, in which '#' is a number, and what replaces them, each with its NUL, and an empty name at the end. The results of earlier ones are in later
 * ones. */
static void replace_all(tsr_str *name, char *text, const char *pairs)
{
    tsr_str old, new;
    for (const char *at = pairs; *at; at = new.data + new.size + 1) {
        old = tsr_str_from(at);
        new = tsr_str_from(at + old.size + 1);
        replace(name, text, old, new);
    }
}

/* Gives the modules that transformers renames when it loads a model one name, whether it is the stored one or the one in memory.
 * Source: transformers 5.24, conversion_mapping.py. */
static void rename_modules(tsr_str *name, char *text)
{
    static const char pairs[] = "encoder.layer\0layers\0"
                                "encoder.layers\0layers\0"
                                "encoder.encoder\0encoder.aifi\0"
                                "transformer.h\0layers\0"
                                "transformer.wte\0embed\0"
                                "embed_tokens\0embed\0"
                                "tok_embeddings\0embed\0"
                                "word_embeddings\0embed\0"
                                "lm_head\0head\0"
                                "unembed\0head\0"
                                "patchifier\0patch\0"
                                "patch_embed\0patch\0"
                                "vision_tower\0visual\0"
                                "visual.backbone\0visual\0"
                                "vision_projector\0projector\0"
                                "paligemma_with_expert.paligemma\0vlm\0"
                                "paligemma_with_expert.gemma_expert\0dit\0"
                                "merger.linear_1\0proj_in\0"
                                "merger.linear_2\0proj_out\0"
                                "ffn\0mlp\0"
                                "feed_forward\0mlp\0"
                                "mlp.router\0mlp.gate\0"
                                "shared_experts\0shared\0"
                                "shared_expert\0shared\0"
                                "shared_mlp\0shared\0"
                                "share_expert\0shared\0"
                                "encoder.block\0stages\0"
                                "attention.attention\0attention\0"
                                "attention.self\0attention\0"
                                "attn.attention\0attn\0"
                                "self_attn\0attn\0"
                                "self_attention\0attn\0"
                                "attention\0attn\0"
                                "q_proj.linear\0q\0"
                                "k_proj.linear\0k\0"
                                "v_proj.linear\0v\0"
                                "o_proj.gate_proj\0gate_attn\0"
                                "o_proj.linear\0o\0"
                                "relative_position_bias.linear\0r_proj\0"
                                "encoder_attn.out_proj\0encoder_attn.o_proj\0"
                                "vision_encoder.neck\0tracker_neck\0"
                                "attn.query\0attn.q\0"
                                "attn.q_proj\0attn.q\0"
                                "attn.to_q\0attn.q\0"
                                "attn.wq\0attn.q\0"
                                "attn.wq_du\0attn.q\0"
                                "attn.key\0attn.k\0"
                                "attn.k_proj\0attn.k\0"
                                "attn.to_k\0attn.k\0"
                                "attn.wk_dv\0attn.k\0"
                                "attn.value\0attn.v\0"
                                "attn.v_proj\0attn.v\0"
                                "attn.to_v\0attn.v\0"
                                "attn.wv\0attn.v\0"
                                "attn.wv_dv\0attn.v\0"
                                "attn.r_proj\0attn.wr_du\0"
                                "attn.attn_sink_proj\0attn.sink_proj\0"
                                "attn.output.dense\0attn.o\0"
                                "attn.output\0attn.o\0"
                                "attn.out_proj\0attn.o\0"
                                "attn.o_proj\0attn.o\0"
                                "attn.to_out\0attn.o\0"
                                "attn.dense\0attn.o\0"
                                "attn.proj\0attn.o\0"
                                "attn.wo\0attn.o\0"
                                "attn.wo_ud\0attn.o\0"
                                "linear_gate\0gate_proj\0"
                                "attn.gate_proj\0attn.g_proj\0"
                                "indexer.gate_proj\0indexer.wgate\0"
                                "compressor.gate_proj\0compressor.wgate\0"
                                "intermediate.dense\0w1\0"
                                "output.dense\0w2\0"
                                "dense_h_to_4h\0w1\0"
                                "dense_4h_to_h\0w2\0"
                                "dense1\0w1\0"
                                "dense2\0w2\0"
                                "fc1\0w1\0"
                                "fc2\0w2\0"
                                "fc3\0w3\0"
                                "ff0\0w1\0"
                                "ff1\0w2\0"
                                "W_down\0w1\0"
                                "W_up\0w2\0"
                                "c_fc_0\0w1\0"
                                "c_fc_1\0w3\0"
                                "mlp.c_fc\0mlp.w1\0"
                                "mlp.c_proj\0mlp.w2\0"
                                "gate_proj\0w1\0"
                                "down_proj\0w2\0"
                                "up_proj\0w3\0"
                                "kv_a_proj_with_mqa\0wkv_a_with_mqa\0"
                                "kv_b_proj\0wkv_b\0"
                                "q_gate_proj\0wq_b\0"
                                "q_a_proj\0wq_a\0"
                                "q_b_proj\0wq_b\0"
                                "kv_proj\0wkv\0"
                                "o_a_proj\0wo_a\0"
                                "o_b_proj\0wo_b\0"
                                "compressor.indexer\0indexer\0"
                                "indexer.compressor\0indexer\0"
                                "indexer.scorer\0indexer\0";
    replace_all(name, text, pairs);
}

static bool has_type(const cJSON *config, const char *types)
{
    const cJSON *item, *type = cJSON_GetObjectItemCaseSensitive(config, "model_type");
    if (cJSON_IsString(type) && tsr_is_among(tsr_str_from(type->valuestring), types)) return true;
    cJSON_ArrayForEach(item, config)
    {
        if (cJSON_IsObject(item) && has_type(item, types)) return true;
    }
    return false;
}

bool tsr_lora_is_of_type(const tsr_mapped *m, const char *types)
{
    return cJSON_IsObject(m->config) && has_type(m->config, types);
}

/* What transformers renames in models of a few types only, as model_type of config.json has them. A build for size has no room for these
 * rows, and refuses such adapters. Source: transformers 5.24, conversion_mapping.py. */
/* clang-format off */
static const struct {
    const char *types, *pairs;
} renamed_in[] = {
    {"gte\0",
     "new\0\0gte\0\0post_attention_layernorm\0attn_ln\0post_mlp_layernorm\0mlp_ln\0"
     "lm_head.layer_norm\0lm_head.norm\0"},
    {"nomic_bert\0",
     "gate_proj\0fc12\0up_proj\0fc11\0post_attention_layernorm\0norm1\0post_mlp_layernorm\0norm2\0"
     "embeddings.LayerNorm\0emb_ln\0"},
    {"dinov2\0dinov2_with_registers\0",
     "weights_out\0down_proj\0"},
    {"radio\0",
     "radio_model.model.blocks\0layers\0radio_model.model.patch_generator.video_embedder\0video\0"
     "embeddings.video_patch_projection\0video\0radio_model.model.patch_generator.embedder\0embedder\0"
     "embeddings.patch_projection\0embedder\0"},
    {"jina_embeddings_v3\0",
     "mixer\0attn\0post_attention_layernorm\0norm1\0post_mlp_layernorm\0norm2\0embeddings.LayerNorm\0emb_ln\0"},
    {"gradium_phonon_tts\0",
     "flow_lm.condition_provider.conditioners.transcript_in_segment.embed\0embed_tokens\0"
     "flow_lm.condition_provider.conditioners.speaker_wavs.output_proj\0audio_prompt_proj\0"
     "flow_lm.condition_provider.conditioners.num_speakers.embed\0num_speakers_embed\0"
     "flow_lm.condition_provider.conditioners.num_speakers.output_proj\0num_speakers_proj\0"
     "flow_lm.condition_provider.conditioners.duration_delta.output_proj\0duration_delta_proj\0"
     "flow_lm.input_linear\0audio_latent_proj\0flow_lm.out_eos\0eos_head\0"
     "flow_lm.transformer.layers\0layers\0linear1\0fc1\0linear2\0fc2\0flow_lm.flow_net\0flow_head\0"
     "timestep_embeddings\0time_embed\0mlp.0\0fc1\0mlp.2\0fc2\0cond_embed\0cond_proj\0"
     "res_blocks\0layers\0adaLN_modulation.1\0adaln_proj\0final_layer.linear\0final_layer.proj\0"},
    {"nemo_speechlm\0",
     "perception.encoder\0audio_tower\0"
     "diarization_model.model.audio_tower\0diarization_model.encoder\0"
     "ctc_timestamp.decoder.transformer\0word_timestamp_encoder\0"
     "sortformer_modules.encoder_proj\0model.proj\0"
     "sortformer_modules.first_hidden_to_hidden\0classifier.dense\0"
     "sortformer_modules.single_hidden_to_spks\0classifier.out_proj\0"
     "multi_modal_projector\0perception.proj\0embed_tokens\0embeddings\0"
     "embedder.projection\0pre_encode.proj\0ffn.net.0\0fc1\0ffn.net.3\0fc2\0"},
    {"qianfan_ocr\0",
     "vision_model\0visual\0multi_modal_projector.linear_1\0mlp1.1\0"
     "multi_modal_projector.linear_2\0mlp1.3\0patch_embeddings.projection\0patch_embedding\0"
     "projection_layer\0proj\0"},
    {"step3p5_vision\0",
     "vision_model\0visual\0embeddings.patch_embedding\0conv1\0"
     "embeddings.position_embedding.weight\0positional_embedding\0transformer.resblocks\0layers\0"
     "vit_downsampler1\0downsampler1\0vit_downsampler2\0downsampler2\0"},
    {"step3p7\0",
     "multi_modal_projector\0vit_large_projector\0moe.gate\0gate\0moe.down_proj.weight\0experts.w2\0"},
    {"tipsv2\0tipsv2_dpt\0",
     "vision_model\0visual\0vision_encoder\0visual\0backbone\0visual\0text_encoder\0text_model\0"
     "embeddings.token_embedding\0token_embedding\0transformer.resblocks\0layers\0blocks\0layers\0"
     "embeddings.patch_embeddings.projection\0patch_embed.proj\0"},
    {"tipsv2_dpt\0",
     "depth_head.depth_head\0decoder.head\0normals_head.normals_head\0decoder.head\0"
     "segmentation_head.segmentation_head\0decoder.head\0"
     "depth_head\0\0normals_head\0\0segmentation_head\0\0decoder.project\0project\0neck.convs\0convs\0"
     "neck.fusion_stage.layers.#.projection\0fusion_blocks.#.out_conv\0"
     "neck.fusion_stage.layers.#.residual_layer1.convolution1\0fusion_blocks.#.residual_unit.conv1\0"
     "neck.fusion_stage.layers.#.residual_layer1.convolution2\0fusion_blocks.#.residual_unit.conv2\0"
     "neck.fusion_stage.layers.#.residual_layer2.convolution1\0fusion_blocks.#.main_unit.conv1\0"
     "neck.fusion_stage.layers.#.residual_layer2.convolution2\0fusion_blocks.#.main_unit.conv2\0"
     "neck.reassemble_stage.layers.#.projection\0reassemble.out_projections.#\0"
     "neck.reassemble_stage.layers.#.resize\0reassemble.resize_layers.#\0"
     "neck.reassemble_stage.readout_projects.#.layers.0\0reassemble.readout_projects.#\0"},
    {"kimi_k25\0", /* the first ones: the files count from 0 */
     "vision_tower.encoder.blocks.#.mlp.fc1\0vision_tower.layers.#.mlp.fc2\0"
     "vision_tower.encoder.blocks.#.mlp.fc0\0vision_tower.layers.#.mlp.fc1\0"
     "vision_tower.encoder.blocks.#.norm1\0vision_tower.layers.#.norm2\0"
     "vision_tower.encoder.blocks.#.norm0\0vision_tower.layers.#.norm1\0"
     "vision_tower.encoder.blocks.#.wo\0vision_tower.layers.#.attn.o\0"
     "vision_tower.encoder.blocks\0vision_tower.layers\0vision_tower.encoder\0vision_tower\0blocks\0layers\0"
     "mm_projector.in_proj\0mm_projector.proj.0\0mm_projector.out_proj\0mm_projector.proj.2\0"},
    {"dory\0",
     "backbone\0\0embeddings\0embed\0"},
    {"cosmos3_edge\0",
     "mlp.up_proj\0mlp.fc1\0"},
    {"sapiens2\0",
     "attn.wk\0attn.k\0ffn.w3\0w2\0layer.#\0#\0embeddings.patch_embeddings\0patch_embed.projection\0backbone\0\0"
     "decode_head.predictor\0conv\0decode_head.conv_seg\0conv\0decode_head.conv_pose\0conv\0"
     "decode_head.conv_normal\0conv\0decode_head.conv_pointmap\0conv\0decode_head.conv_matting\0conv\0"
     "conv_layers.0.convolution\0conv_layers.0\0conv_layers.1.convolution\0conv_layers.3\0"
     "conv_layers.2.convolution\0conv_layers.6\0input_conv.convolution\0input_conv.0\0"
     "upsample_layers.#.convolution\0upsample_blocks.#.0\0"},
    {"inkling_mm_model\0",
     "audio_tower\0audio\0embed_audio_tokens.embed_audio_tokens\0encoder\0w2_md\0w2\0"
     "encoder_layers.#.projection\0linear_#\0layers.linear_#\0linear_#\0"},
    {"inkling_mm_model\0inkling2_text\0inkling2_loop_text\0",
     "embed_tokens.embed_norm\0embed_norm\0experts.w2_weight\0experts.w2\0k_proj.sconv\0k_sconv\0v_proj.sconv\0v_sconv\0weight_proj.weight\0weight_proj\0"},
    {"inkling2\0inkling2_loop\0",
     "position_embedding.weight\0position_embedding\0"},
    {"inkling2_loop_text\0",
     "controllers.attn\0q_message_gate\0k_message_gate\0controllers.k\0v_message_gate\0controllers.v\0"
     "mlp_message_gate\0controllers.mlp\0down_proj.weight\0down_weight\0"
     "message_gate_proj.weight\0gain_weight\0forget_gate_proj.weight\0forget_weight\0"},
    {"unlimited_ocr\0",
     "multi_modal_projector\0projector.layers\0vision_tower.sam_encoder.layers\0sam_model.blocks\0"
     "vision_tower.sam_encoder\0sam_model\0vision_tower.vision_encoder.encoder.layers\0visual.layers\0"
     "vision_model.transformer.layers\0visual.layers\0patch_embed.projection\0patch_embed.proj\0"
     "neck.conv1\0neck.0\0neck.conv2\0neck.2\0sam_model.proj.conv1\0sam_model.net_2\0"
     "sam_model.proj.conv2\0sam_model.net_3\0"},
    {"granitemoe\0granitemoeshared\0",
     "experts.gate_up_proj\0input_linear.weight\0output_linear.weight\0experts.down_proj\0"},
    {"aria\0aria_text\0",
     "experts.gate_up_proj\0experts.fc1.weight\0experts.fc2.weight\0experts.down_proj\0"},
    {"cohere_asr\0",
     "linear_q\0q_proj\0linear_k\0k_proj\0linear_v\0v_proj\0linear_out\0o_proj\0"
     "relative_k_proj\0linear_pos\0subsampling.layers\0pre_encode.conv\0"
     "subsampling.linear\0pre_encode.out\0encoder_decoder_proj\0decoder.proj\0"
     "transf_decoder._decoder\0decoder\0first_sub_layer.query_net\0self_attn.q_proj\0"
     "first_sub_layer.key_net\0self_attn.k_proj\0first_sub_layer.value_net\0self_attn.v_proj\0"
     "first_sub_layer.out_projection\0self_attn.o_proj\0"
     "second_sub_layer.query_net\0encoder_attn.q_proj\0second_sub_layer.key_net\0encoder_attn.k_proj\0"
     "second_sub_layer.value_net\0encoder_attn.v_proj\0"
     "second_sub_layer.out_projection\0encoder_attn.o_proj\0third_sub_layer.dense_in\0mlp.fc1\0"
     "third_sub_layer.dense_out\0mlp.fc2\0"},
    {"cosmos3_omni\0",
     "visual\0\0"},
    {"paddleocr_vl\0",
     "projector\0mlp_AR\0"},
    {"mistral_large4\0",
     "vision_encoder\0visual\0multi_modal_projector.linear_1\0vision_language_adapter.w_in\0"
     "multi_modal_projector.linear_2\0vision_language_adapter.w_out\0"
     "multi_modal_projector.patch_merger\0patch_merger\0"},
    {"minimax_m3_vl\0",
     "multi_modal_projector.merge_linear_1\0patch_merge_mlp.linear_1\0"
     "multi_modal_projector.merge_linear_2\0patch_merge_mlp.linear_2\0"},
    {"dots3_note_vision_encoder\0",
     "adapter\0merger\0"},
    {"pp_doclayout_v3\0", /* see second_places */
     "decoder.class_embed\0enc_score_head\0decoder.bbox_embed\0enc_bbox_head\0"},
    {"dots3_note_audio_encoder\0",
     "audio_adapter\0adapter\0adapter.proj.1\0adapter.fc1\0adapter.proj.3\0adapter.fc2\0"
     "dots_encoder.speech_encoder\0\0conv_stem.convs.0\0conv2d1\0conv_stem.convs.1\0conv2d2\0"
     "conv_stem.convs.2\0conv2d3\0conv_stem.conv_out\0conv_out\0gate_up_proj\0fc1\0"},
};
/* clang-format on */

/* Modules in memory whose tensors are those of other modules, which come before them and have their names in the files. Source:
 * _tied_weights_keys of transformers 5.24. */
static const struct {
    const char *types, *modules;
} second_places[] = {
    {"pp_doclayout_v3\0", "decoder.class_embed\0decoder.bbox_embed\0"},
};

bool tsr_lora_is_second_place(const tsr_lora_names *names, tsr_str target)
{
    for (size_t i = 0; i < sizeof second_places / sizeof *second_places && !TSR_IS_SMALL; i++) {
        if (!tsr_lora_is_of_type(names->m, second_places[i].types)) continue;
        for (const char *module = second_places[i].modules; *module; module += strlen(module) + 1) {
            const tsr_str pattern = tsr_str_from(module);
            tsr_str number;
            size_t end;
            for (size_t at = 0; at < target.size; at++)
                if (is_at(target, at, pattern, &end, &number)) return true;
        }
    }
    return false;
}

/* The files on the Hub number each layer of dory twice, layers.0.mixer for the attention and layers.1.mixer for what follows it; those that
 * transformers writes do not. Source: LayerPairCollapse of transformers' core_model_loading.py. */
static void number_mixers(tsr_str *name, char *text)
{
    size_t end;
    tsr_str number;
    uint64_t block;
    for (size_t at = 0; at < name->size; at++) {
        if (!is_at(*name, at, TSR_STR("layers.#.mixer"), &end, &number) || !tsr_component_number(number, &block)) continue;
        char new[64];
        tsr_line line = tsr_line_on(new, sizeof new);
        tsr_line_format(&line, "layers.%llu.%s", (unsigned long long)(block / 2), block % 2 ? "mlp" : "attn");
        memcpy(text + at, new, line.used);
        memmove(text + at + line.used, text + end, name->size - end);
        name->size -= end - at - line.used;
        return;
    }
}

static tsr_str named_by_type(const tsr_lora_names *names, tsr_str name, tsr_error *err)
{
    if (TSR_IS_SMALL) return name;
    const tsr_str copy = tsr_arena_format(names->m->own->arena, err, "%.*s", TSR_STR_ARG(name));
    tsr_str left = copy;
    for (size_t i = 0; copy.data && i < sizeof renamed_in / sizeof *renamed_in; i++)
        if (names->types & 1u << i) replace_all(&left, (char *)(uintptr_t)copy.data, renamed_in[i].pairs);
    if (copy.data && tsr_lora_is_of_type(names->m, "dory\0")) number_mixers(&left, (char *)(uintptr_t)copy.data);
    return left;
}

static void find_types(tsr_lora_names *names)
{
    _Static_assert(sizeof renamed_in / sizeof *renamed_in <= 32, "names->types has too few bits");
    for (size_t i = 0; i < sizeof renamed_in / sizeof *renamed_in && !TSR_IS_SMALL; i++)
        names->types |= (uint32_t)tsr_lora_is_of_type(names->m, renamed_in[i].types) << i;
}

static tsr_str compared(const tsr_lora_names *names, unsigned comparison, tsr_str name, tsr_error *err)
{
    tsr_arena *arena = names->m->own->arena;
    name = named_by_type(names, name, err);
    if (!name.data) return name;
    tsr_str left = tsr_name_without(arena, name, names->is_inner ? WRAPPERS INNER : WRAPPERS OUTER, err);
    if (!left.data || !comparison) return left;
    rename_modules(&left, (char *)(uintptr_t)left.data);
    return tsr_name_without(
        arena, left, "mlp\0blocks\0block_sparse_moe\0forget_gate\0llm\0embed_action_time\0detector_model\0tracker_model\0",
        err);
}

void tsr_lora_names_open(tsr_lora_names *names, const tsr_mapped *m)
{
    *names = (tsr_lora_names){.m = m, .is_inner = has_inner_model(m)};
    find_types(names);
}

tsr_str tsr_lora_compared(const tsr_lora_names *names, tsr_str name, tsr_error *err)
{
    return compared(names, TSR_LORA_COMPARISONS - 1, name, err);
}

static tsr_status list_stored(tsr_lora_names *names, unsigned comparison, tsr_error *err)
{
    tsr_map **stored = &names->stored[comparison];
    const tsr_catalog *catalog = &names->m->source->catalog;
    *stored = tsr_map_new(names->m->own->host->allocator, 0, err);
    for (uint64_t i = 0; *stored && i < catalog->entry_count; i++) {
        uint32_t *number;
        bool inserted;
        const tsr_str name = compared(names, comparison, catalog->entries[i].fqn, err);
        if (!name.data) return TSR_E_NOMEM;
        TSR_TRY(tsr_map_put(*stored, name, (uint32_t)i, &number, &inserted, err));
        if (!inserted) *number = SEVERAL;
    }
    return *stored ? TSR_OK : TSR_E_NOMEM;
}

tsr_status tsr_lora_stored(tsr_lora_names *names, tsr_str target, tsr_str *out, tsr_error *err)
{
    *out = target;
    if (tsr_checkpoint_entry(names->m->source, target)) return TSR_OK;
    uint32_t number = UINT32_MAX;
    for (unsigned i = 0; i < TSR_LORA_COMPARISONS && number == UINT32_MAX; i++) {
        if (!names->stored[i]) TSR_TRY(list_stored(names, i, err));
        const tsr_str name = compared(names, i, target, err);
        if (!name.data) return TSR_E_NOMEM;
        number = tsr_map_get(names->stored[i], name, UINT32_MAX);
    }
    if (number < SEVERAL) *out = names->m->source->catalog.entries[number].fqn;
    return TSR_OK;
}

/* ---- state dicts of whole PEFT models ---- */

/* Whether the entry is PEFT's and not the base's. */
static bool is_added(tsr_str name)
{
    tsr_str module, adapter;
    return tsr_lora_kind_of(name, &module, &adapter) != TSR_LORA_WHOLE ||
           tsr_str_contains(name, TSR_STR(".modules_to_save."));
}

static tsr_status fill_base(tsr_mapped *m, void *ctx, tsr_error *err)
{
    const tsr_catalog *catalog = &m->source->catalog;
    const tsr_entry *first = NULL;
    (void)ctx;
    for (uint64_t i = 0; i < catalog->entry_count; i++) {
        const tsr_entry *entry = &catalog->entries[i];
        if (is_added(entry->fqn)) {
            const tsr_entry **place = tsr_vec_push(&m->dropped, err);
            if (!place) return TSR_E_NOMEM;
            *place = entry;
            if (!first) first = entry;
            continue;
        }
        tsr_str name = entry->fqn;
        leave_out_prefix(&name);
        name = tsr_name_without(m->own->arena, name, WRAPPERS PEFT_WRAPPERS, err);
        if (!name.data) return TSR_E_NOMEM;
        TSR_TRY(tsr_mapped_keep(m, entry, i, err));
        tsr_entry *kept = &((tsr_mapped_row *)m->rows.items)[m->rows.count - 1].entry;
        kept->path = NULL;
        kept->path_length = 0;
        kept->fqn = name;
    }
    if (!first) return TSR_OK;
    return tsr_mapped_add_note(m,
                               tsr_arena_format(m->own->arena, err,
                                                "the base is the state dict of a PEFT model; tensors of its own adapter are "
                                                "left out, such as '%.*s'",
                                                TSR_STR_ARG(first->fqn)),
                               err);
}

tsr_status tsr_lora_open_state(tsr_checkpoint *state, tsr_checkpoint **out, tsr_error *err)
{
    const tsr_mapped_scheme scheme = {.fill = fill_base};
    return tsr_mapped_open(state, &scheme, out, err);
}
