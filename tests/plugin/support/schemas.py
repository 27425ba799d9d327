"""What a value lacks to fit a JSON Schema, of the words that ours use."""

KINDS = {"string": str, "boolean": bool, "integer": int, "number": (int, float), "null": type(None)}


def faults(schema, value, where="extra_info"):
    """What of the value the schema does not allow."""
    if "anyOf" in schema:
        if all(list(faults(one, value)) for one in schema["anyOf"]):
            yield f"{where} is none of {schema['anyOf']}: {value!r}"
        return
    kind = schema.get("type")
    if "enum" in schema and value not in schema["enum"]:
        yield f"{where} is not in {schema['enum']}: {value!r}"
    if kind in KINDS and (not isinstance(value, KINDS[kind]) or (isinstance(value, bool) and kind != "boolean")):
        yield f"{where} is no {kind}: {value!r}"
    elif kind == "integer" and not schema["minimum"] <= value <= schema["maximum"]:
        yield f"{where} is too large: {value!r}"
    if kind in ("array", "object") and not isinstance(value, {"array": list, "object": dict}[kind]):
        yield f"{where} is no {kind}: {value!r}"
    elif kind == "array":
        yield from (f for i, one in enumerate(value) for f in faults(schema["items"], one, f"{where}[{i}]"))
    elif kind == "object":
        yield from (f"{where} lacks {name}" for name in schema.get("required", ()) if name not in value)
        known = schema.get("properties", {})
        yield from (f for name in known if name in value for f in faults(known[name], value[name], f"{where}.{name}"))
        others = schema.get("additionalProperties", {})
        yield from (f for name in value if name not in known for f in faults(others, value[name], f"{where}.{name}"))
