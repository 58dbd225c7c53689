"""The part of JSON Schema (2020-12) that native/cli/schemas uses. An unknown keyword is an error, so that nothing remains
unchecked."""
import glob
import json
import os
import re

TYPES = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None)}
NOTES = {"$schema", "$id", "title", "description"}


def is_type(value, name):
    if name == "integer":
        return isinstance(value, int) and not isinstance(value, bool)
    if name == "number":
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    return isinstance(value, TYPES[name])


def problems(value, schema, at="$", root=None):
    """Yields a text for every way in which a value violates a schema. `root` has the schema's "$defs"."""
    root = root or schema
    for keyword, rule in schema.items():
        if keyword in NOTES:
            continue
        elif keyword == "$defs":
            continue
        elif keyword == "$ref":
            yield from problems(value, root["$defs"][rule.removeprefix("#/$defs/")], at, root)
        elif keyword == "type":
            if not any(is_type(value, t) for t in ([rule] if isinstance(rule, str) else rule)):
                yield f"{at}: {value!r:.60} is no {rule}"
                return
        elif keyword in ("const", "enum"):
            if value not in ([rule] if keyword == "const" else rule):
                yield f"{at}: {value!r:.60} is not {rule!r}"
        elif keyword == "minimum":
            if is_type(value, "number") and value < rule:
                yield f"{at}: {value} is below {rule}"
        elif keyword == "minItems":
            if isinstance(value, list) and len(value) < rule:
                yield f"{at}: {len(value)} items, fewer than {rule}"
        elif keyword in ("minLength", "maxItems"):
            size = len(value) if isinstance(value, str if keyword == "minLength" else list) else rule
            if size < rule if keyword == "minLength" else size > rule:
                yield f"{at}: {value!r:.60} breaks {keyword} {rule}"
        elif keyword == "pattern":
            if isinstance(value, str) and not re.search(rule, value):
                yield f"{at}: {value!r:.60} does not match {rule}"
        elif keyword == "required":
            yield from (f"{at}: {k} is missing" for k in rule if isinstance(value, dict) and k not in value)
        elif keyword == "properties":
            for k, sub in rule.items():
                if isinstance(value, dict) and k in value:
                    yield from problems(value[k], sub, f"{at}.{k}", root)
        elif keyword == "additionalProperties":
            for k in set(value) - set(schema.get("properties", ())) if isinstance(value, dict) else ():
                yield from [f"{at}: unknown {k}"] if rule is False else problems(value[k], rule, f"{at}.{k}", root)
        elif keyword == "items":
            for i, item in enumerate(value if isinstance(value, list) else ()):
                yield from problems(item, rule, f"{at}[{i}]", root)
        elif keyword == "oneOf":
            tries = [list(problems(value, sub, at, root)) for sub in rule]
            if sum(not t for t in tries) != 1:
                yield min(tries, key=len)[0] if all(tries) else f"{at}: fits several alternatives"
        else:
            raise ValueError(f"schema keyword {keyword} is not checked here")


def load(directory):
    """Returns {"tessera.inspect/1": schema} and so on."""
    schemas = (json.load(open(f)) for f in glob.glob(os.path.join(directory, "*.schema.json")))
    return {s["properties"]["schema"]["const"]: s for s in schemas}
