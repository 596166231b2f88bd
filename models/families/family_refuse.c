/* family_refuse.c - what does not describe a family that is there: another class, another model_type. */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "models/families/family.h"

/* The end of a class's name behind its family's; NULL where it begins otherwise. "GPTNeoXForCausalLM" is gpt_neox's, by letters
 * and digits. */
static const char *behind_family(const char *name, const char *type)
{
    for (; *type; type++) {
        if (!isalnum((unsigned char)*type)) continue;
        while (*name == '_') name++;
        if (tolower((unsigned char)*name++) != tolower((unsigned char)*type)) return NULL;
    }
    return name;
}

/* Families that have no class of their own: transformers computes and saves them by Llama's. */
static bool is_borrowed(const char *name, const char *type)
{
    return (strcmp(type, "exaone") == 0 || strcmp(type, "internlm3") == 0) && strcmp(name, "LlamaForCausalLM") == 0;
}

/* "Gemma3ForCausalLM" is the class of "gemma3_text". */
static bool is_class_of(const char *name, const char *type)
{
    if (is_borrowed(name, type)) return true;
    static const char text[] = "_text";
    const size_t n = strlen(type), n_text = sizeof text - 1;
    char short_type[64];
    if (n > n_text && n < sizeof short_type && strcmp(type + n - n_text, text) == 0) {
        snprintf(short_type, sizeof short_type, "%.*s", (int)(n - n_text), type);
        if (is_class_of(name, short_type)) return true;
    }
    static const char *const ends[] = { "ForCausalLM", "LMHeadModel", "Model", "PreTrainedModel", "ForSequenceClassification",
                                        "ForTokenClassification", "ForQuestionAnswering" };
    const char *end = behind_family(name, type);
    for (size_t i = 0; end && i < sizeof ends / sizeof *ends; i++)
        if (strcmp(end, ends[i]) == 0) return true;
    return false;
}

spec_status speci_family_check_class(const model_config *config)
{
    const char *type = json_string_value(json_object_get(config->root, "model_type"));
    const json_t *classes = json_object_get(config->root, "architectures");
    for (size_t i = 0; type && i < json_array_size(classes); i++) {
        const char *name = json_string_value(json_array_get(classes, i));
        if (name && !is_class_of(name, type))
            return speci_fail(SPEC_E_UNSUPPORTED, "%s: architectures says %.80s, but model_type is \"%.60s\": a class of another "
                              "family computes something else. If it does not, let both name the same family", config->file,
                              name, type);
    }
    return SPEC_OK;
}

/* Names that a supported family had in its first files, whose keys had other names, too. */
static const char *newer_name(const json_t *model_type)
{
    static const char *const names[][2] = { { "RefinedWeb", "falcon" }, { "RefinedWebModel", "falcon" } };
    const char *type = json_string_value(model_type);
    for (size_t i = 0; type && i < sizeof names / sizeof *names; i++)
        if (strcmp(names[i][0], type) == 0) return names[i][1];
    return NULL;
}

/* What it would need, and what to do. */
static void tell_why(char *out, size_t cap, const model_config *config)
{
    const json_t *inner = json_object_get(config->root, "text_config");
    const char *type = json_string_value(json_object_get(inner, "model_type"));
    const char *newer = newer_name(json_object_get(config->root, "model_type"));
    char missing[256];
    speci_config_missing(json_is_object(inner) ? inner : config->root, missing, sizeof missing);
    if (json_is_object(inner))
        snprintf(out, cap, "; it wraps a text model%s%.60s (text_config)%s%s%s", type ? " of model_type " : "", type ? type : "",
                 missing[0] ? " that needs " : "", missing, missing[0] ? ", which is not supported" : ": save that alone");
    else if (missing[0])
        snprintf(out, cap, "; it needs %s, which is not supported", missing);
    else if (newer)
        snprintf(out, cap, "; it is an older name of %s: take the config.json that the model has today, which says %s", newer, newer);
    else
        snprintf(out, cap, "; docs/adding-a-model.md says how a family is added");
}

spec_status speci_family_refuse(const model_config *config, const char *known)
{
    const json_t *value = json_object_get(config->root, "model_type");
    const char *type = json_string_value(value);
    char why[512];
    if (!type)
        return speci_fail(SPEC_E_FORMAT, "%s: model_type is %s, expected one of %s", config->file,
                          value ? speci_value_of(value).s : "missing", known);
    tell_why(why, sizeof why, config);
    return speci_fail(SPEC_E_UNSUPPORTED, "%s: model_type is \"%.60s\", expected one of %s%s", config->file, type, known, why);
}
