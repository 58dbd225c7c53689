"""Built-in maps and their schema."""
import schema

from harness import SCHEMAS, need, test


@test
def maps_fit_their_schema(t):
    names = t.text("map", "list").split()
    need(len(names) > 10 and t.json("map", "list", "--json")["maps"] == names, names)
    documents = {name: t.json("map", "show", name) for name in names}
    rules = documents["megatron-llama"]
    for bad in ({"before": {}}, {"before": [{"from": []}]}, {"rules": [{"from": ["a"], "to": [], "required": 1}]}, {"rules": [{"from": ["a"], "to": [], "required": ""}]},
                {"rules": [{"from": ["a"], "to": [], "inverse": "no"}]}, {"rules": [{"from": ["a"], "to": [], "inverse": {}}]}, {"after": []},
                {"models": {}}, {"models": [1]}, {"rules": [{"from": ["a"], "to": ["a"], "copy_of": ""}]}, {"dims": []}, {"dims": {"hidden": "$hidden_size"}}, {"dims": {"hidden": []}}, {"dims": {"hidden": ["hidden_size"]}}, {"dims": {"hidden": [["/$a"]]}}):
        need(list(schema.problems({**rules, **bad}, SCHEMAS["tessera.map/1"])), f"the schema allows {bad}")
