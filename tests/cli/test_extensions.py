"""What the extension of DEST asks for, where optim cannot write that or would not."""
import os

from harness import need, sample, test

FILES = (".safetensors", ".pt", ".pth", ".bin")


def refused(t, extension, *args):
    made = t.at(f"out{extension}")
    said = t.run(*(made if a == "DEST" else a for a in args), status=2).stderr.decode()
    need(made in said and not os.path.exists(made), said)
    return said


@test
def test_optim_does_not_write_a_torch_file_under_the_name_of_a_safetensors_file(t):
    path = sample("dcp_fsdp2")[0]
    for action in ("flatten", "unflatten"):
        said = refused(t, ".safetensors", "optim", action, path, "DEST")
        need("name it .pt" in said and "--objects sidecar" in said, said)
    for name in ("a.pt", "a.pth", "a.bin", "a", "a.safetensors.pt"):
        t.run("optim", "flatten", path, t.at(name))
    t.run("convert", t.at("a.pt"), t.at("a.safetensors"), "--objects", "sidecar")
    tensors = {e["fqn"] for e in t.json("inspect", t.at("a.pt"), "--json")["entries"] if e["kind"] == "tensor"}
    need(tensors == {e["fqn"] for e in t.json("inspect", t.at("a.safetensors"), "--json")["entries"]} != set(), "what the message proposes loses tensors")


@test
def test_optim_does_not_write_a_directory_under_the_name_of_a_file(t):
    flat = ("--flat-params", t.at("flat.json"))
    with open(flat[1], "w") as f:
        f.write("{}")
    for extension in FILES:
        for args in (("shard", "full", "DEST", *flat), ("unshard", "ranks", "DEST", *flat, "--sharded")):
            said = refused(t, extension, "optim", *args)
            need("directory" in said, said)
