"""tessera.load_sharded_optimizer_state beside PyTorch's own load_sharded_optimizer_state_dict, on gloo:

    optimizer_ranks.py RANKS DIRECTORY        of 2 ranks or more

FSDP1 trains on the ranks and saves its SHARDED state as DIRECTORY/from<RANKS>; what earlier runs saved there is loaded, too. Slices of tensor
parallelism are checked with 2 and 4 ranks. Prints "done"."""
import enum
import functools
import json
import os
import sys
import tempfile
import warnings

warnings.filterwarnings("ignore", module="torch")
sys.path[:0] = [os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", directory) for directory in ("golden", "support")]

import tessera
import tessera.torch
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from make_optim_load import nested
from safetensors.torch import save_file
from torch.distributed._shard.sharded_tensor import Shard, ShardedTensor, ShardMetadata
from torch.distributed.checkpoint._nested_dict import flatten_state_dict
from torch.distributed.checkpoint.optimizer import load_sharded_optimizer_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module, RowwiseParallel
from torch_ranks import run_ranks

try:
    from torch.distributed.tensor import distribute_tensor, DTensor, Shard as ShardOn
except ImportError:  # before 2.5
    from torch.distributed._tensor import distribute_tensor, DTensor, Shard as ShardOn

if not torch.cuda.is_available():
    torch.cuda.synchronize = lambda *_: None  # FSDP1 of PyTorch 2.3 calls it whatever the device is
KEY = "optimizer"
SLICES = {"0.weight": [([0, 0], [5, 4]), ([0, 4], [5, 2])], "2.weight": [([0, 0], [2, 5]), ([2, 0], [1, 5])], "2.bias": [([0], [2]), ([2], [1])]}


def fsdp_model():
    torch.manual_seed(3)
    net = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3))
    model = FSDP(net, device_id=torch.device("cpu"), use_orig_params=True)
    FSDP.set_state_dict_type(model, StateDictType.SHARDED_STATE_DICT)
    return model


def adam(model):
    return torch.optim.AdamW(model.parameters(), lr=0.25, amsgrad=True)


def train(model):
    """Each rank sees data of its own."""
    optimizer = adam(model)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(4, 6) * (dist.get_rank() + 1)).square().mean().backward()
        optimizer.step()
    return optimizer


def same(ours, theirs, where):
    """Types, order of keys, tensors with all that PyTorch says of them, and values."""
    assert type(ours) is type(theirs), f"{where}: {type(ours)}, {type(theirs)}"
    if isinstance(ours, dict):
        assert list(ours) == list(theirs), f"{where}: {list(ours)}, {list(theirs)}"
        for key in ours:
            same(ours[key], theirs[key], f"{where}.{key}")
    elif isinstance(ours, (list, tuple)):
        assert len(ours) == len(theirs), where
        for n, pair in enumerate(zip(ours, theirs)):
            same(*pair, f"{where}[{n}]")
    elif isinstance(ours, ShardedTensor):
        assert ours.metadata() == theirs.metadata(), f"{where}: {ours.metadata()}, {theirs.metadata()}"
        assert ours.sharding_spec() == theirs.sharding_spec() and ours._process_group is theirs._process_group, where
        assert ours.size() == theirs.size() and len(ours.local_shards()) == len(theirs.local_shards()), where
        for a, b in zip(ours.local_shards(), theirs.local_shards()):
            assert a.metadata == b.metadata, f"{where}: {a.metadata}, {b.metadata}"
            same(a.tensor, b.tensor, where)
    elif isinstance(ours, torch.Tensor):
        assert ours.dtype == theirs.dtype and ours.device == theirs.device and ours.requires_grad == theirs.requires_grad and torch.equal(ours, theirs), f"{where}: {ours}, {theirs}"
    else:
        assert ours == theirs, f"{where}: {ours}, {theirs}"


def by_name(value):
    """Dicts sorted: the order is the file's, and DCP's is not that of the state."""
    if isinstance(value, dict):
        return {key: by_name(value[key]) for key in sorted(value)}
    return [by_name(v) for v in value] if isinstance(value, list) else value


def both(directory, model_state, key=KEY):
    theirs = load_sharded_optimizer_state_dict(model_state, key, dcp.FileSystemReader(directory))
    ours = tessera.load_sharded_optimizer_state(directory, key, model_state)
    same(ours, theirs, directory)
    return ours


def by_hand():
    ramp = lambda *shape: torch.arange(torch.Size(shape).numel()).reshape(shape)
    state = {"0.weight": {"step": torch.tensor(7.0), "exp_avg": ramp(5, 6).float() + 0.5, "half": ramp(5, 6).to(torch.bfloat16), "count": ramp(5, 6) + 1000},
             "2.bias": {"exp_avg": ramp(3).float() - 4, "kind": "text", "one": torch.full((1, 1), 9.0), **({"none": torch.zeros(0, 3)} if hasattr(dcp.metadata, "StorageMeta") else {})}}  # PyTorch 2.3 makes no ShardedTensor without elements
    groups = [{"lr": torch.tensor(0.5), "betas": (torch.tensor(0.75), 0.5), "history": [torch.tensor([1.0, 2.0, 3.0]), torch.tensor(4)], "params": list(state)}, {"lr": 0.25, "flag": None, "params": []}]
    return {KEY: {"state": state, "param_groups": groups}, "model": {"0.weight": torch.ones(5, 6)}}


def check_fsdp(directory, model_state):
    """In 1-D, of checkpoints of any world; and into a new optimizer."""
    model = fsdp_model()
    optimizer = train(model)
    own = os.path.join(directory, f"from{dist.get_world_size()}")
    dcp.save({"model": model.state_dict(), KEY: FSDP.optim_state_dict(model, optimizer)}, checkpoint_id=own)
    for name in sorted(os.listdir(directory)):
        both(os.path.join(directory, name), model_state)
    fresh = adam(model)
    loaded = tessera.load_sharded_optimizer_state(own, KEY, model.state_dict())
    fresh.load_state_dict(FSDP.optim_state_dict_to_load(model, fresh, loaded[KEY]))
    same(by_name(fresh.state_dict()), by_name(optimizer.state_dict()), "a new optimizer")


def save_forms(made, path):
    """The same state in forms that keep its structure, and in those that have flat names of tensors only."""
    flat = {name: value.contiguous() for name, value in flatten_state_dict(made)[0].items() if isinstance(value, torch.Tensor)}
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    over_mesh = {name: distribute_tensor(value, mesh, [ShardOn(0)]) for name, value in flat.items() if value.dim() and value.numel()}
    files = {name: 1 + n % 2 for n, name in enumerate(over_mesh)}
    writer = getattr(dcp, "HuggingFaceStorageWriter", None) or functools.partial(tessera.torch.StorageWriter, form="safetensors")  # before 2.7
    dcp.save(over_mesh, storage_writer=writer(path("hand_hf"), fqn_to_index_mapping=files, save_distributed=True))
    ranks = {KEY: {"state": {name: {key: over_mesh.get(f"{KEY}.state.{name}.{key}", value) for key, value in of.items()} for name, of in made[KEY]["state"].items()},
                   "param_groups": made[KEY]["param_groups"]}}
    os.makedirs(path("hand_ranks"), exist_ok=True)
    torch.save(ranks, path(f"hand_ranks/rank{dist.get_rank()}.pt"))
    if dist.get_rank() == 0:
        torch.save(made, path("hand.pt"))
        torch.save(made, path("hand_legacy.pt"), _use_new_zipfile_serialization=False)
        save_file(flat, path("hand.safetensors"))
        torch.save({KEY: {"state": {0: {"exp_avg": torch.arange(6.0)}, 1: {}}, "param_groups": [{"params": [0, 1]}]}}, path("ids.pt"))
        for directory, suffix, index, write in (("hand_index", "safetensors", "model.safetensors.index.json", save_file), ("hand_bins", "bin", "pytorch_model.bin.index.json", torch.save)):
            os.makedirs(path(directory))
            for n in (0, 1):
                write(dict(list(flat.items())[n::2]), path(f"{directory}/{n}.{suffix}"))
            with open(path(f"{directory}/{index}"), "w") as f:
                json.dump({"metadata": {}, "weight_map": {name: f"{n % 2}.{suffix}" for n, name in enumerate(flat)}}, f)
    dist.barrier()


def check_forms(directory, model_state):
    """What DCP's names cannot tell is told by torch.save: ids, empty dicts."""
    made = by_hand()
    path = lambda name: os.path.join(directory, name)
    dcp.save(made, checkpoint_id=path("dcp"))
    save_forms(made, path)
    want = both(path("dcp"), model_state)
    load = lambda name: tessera.load_sharded_optimizer_state(path(name), KEY, model_state)
    for name in ("hand.pt", "hand_legacy.pt", "hand_ranks"):
        same(by_name(load(name)), by_name(want), name)
    wanted = {name: value for name, value in flatten_state_dict(want)[0].items() if isinstance(value, torch.Tensor)}
    for name in ("hand.safetensors", "hand_index", "hand_bins", "hand_hf"):
        got = load(name)
        flat = flatten_state_dict(got)[0]
        assert set(flat) == set(wanted) or name == "hand_hf" and len(flat) == 6, f"{name}: {sorted(flat)}"
        for key in flat:
            same(flat[key], wanted[key], f"{name}: {key}")
        assert "exp_avg" in got[KEY]["state"]["0.weight"] and (name == "hand_hf" or type(got[KEY]["param_groups"]) is list), got
    ids = load("ids.pt")[KEY]
    assert set(ids["state"]) == {0, 1} and ids["state"][1] == {} and ids["param_groups"] == [{"params": [0, 1]}], ids


def check_tensor_parallel(directory):
    """FSDP1 over tensor parallel with a mesh: its state is of DTensors, which show no slices, so that PyTorch loads in 1-D."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    net = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.Tanh(), torch.nn.Linear(4, 3))
    parallelize_module(net, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    model = FSDP(net, device_mesh=mesh["dp"], device_id=torch.device("cpu"), use_orig_params=True)
    FSDP.set_state_dict_type(model, StateDictType.SHARDED_STATE_DICT)
    optimizer = train(model)
    model_state = model.state_dict()
    assert any(type(value) is DTensor for value in model_state.values())
    dcp.save({KEY: FSDP.optim_state_dict(model, optimizer)}, checkpoint_id=directory)
    both(directory, model_state)


def full_state(directory):
    """Every tensor whole, by PyTorch."""
    state = {}
    metadata = dcp.FileSystemReader(directory).read_metadata()
    for name, value in metadata.state_dict_metadata.items():
        if metadata.planner_data[name][0] == KEY and hasattr(value, "size"):
            state[name] = torch.empty(value.size, dtype=value.properties.dtype)
    dcp.load(state, checkpoint_id=directory)
    return state


def placed(group, rank):
    """The number of a rank of a group in placements."""
    return dist.get_global_rank(group, rank) if hasattr(dcp.metadata, "StorageMeta") else rank  # PyTorch 2.3 counts the group's ranks


def rows(size, group):
    """A ShardedTensor of a slice's rows, as FSDP has it, with the ranks' true numbers."""
    world, part = dist.get_world_size(group), -(-size[0] // dist.get_world_size(group))
    shards = []
    for r in range(world):
        begin, end = min(r * part, size[0]), min((r + 1) * part, size[0])
        shards.append(ShardMetadata([begin, *[0] * (len(size) - 1)], [end - begin, *size[1:]], f"rank:{placed(group, r)}/cpu"))
    mine = shards[dist.get_rank(group)]
    return ShardedTensor._init_from_local_shards([Shard(torch.zeros(mine.shard_sizes), mine)], *size, process_group=group)


def sliced_state(t, group):
    state = {}
    for name, shape in (("0.weight", (5, 6)), ("0.bias", (5,)), ("2.weight", (3, 5)), ("2.bias", (3,))):
        offset, size = SLICES[name][t] if name in SLICES else (None, list(shape))
        inner = rows(size, group)
        state[name] = inner if offset is None else nested(inner, ShardMetadata(offset, size, f"rank:{dist.get_rank()}/cpu"), shape, group)
    return state


def check_sliced(directory, t, group, by_pytorch=True):
    """In 2-D every tensor is the slice's rows of the whole one. PyTorch itself loads for groups of ranks 0, 1, … only, and fails where a
    trailing rank's empty shard would begin beyond the tensor."""
    state = sliced_state(t, group)
    ours = both(directory, state) if group is dist.group.WORLD and by_pytorch else tessera.load_sharded_optimizer_state(directory, KEY, state)
    flat, full = flatten_state_dict(ours)[0], full_state(directory)
    assert set(full) <= set(flat)
    for name, whole in full.items():
        value, parameter = flat[name], name.removeprefix(f"{KEY}.state.").rsplit(".", 1)[0]
        if whole.numel() == 1:
            assert type(value) is torch.Tensor and torch.equal(value, whole), name
            continue
        offset, size = SLICES[parameter][t] if parameter in SLICES else ([0] * whole.dim(), list(whole.shape))
        cut = whole[tuple(slice(o, o + s) for o, s in zip(offset, size))]
        (local,) = value.local_shards()
        part, me = -(-size[0] // dist.get_world_size(group)), dist.get_rank(group)
        assert value._process_group is group and list(value.size()) == size and value.dtype == whole.dtype, name
        assert torch.equal(local.tensor, cut[me * part:(me + 1) * part]) and local.metadata.placement.rank() == placed(group, me), name


def refused(call, *parts):
    """On every rank, with the same words."""
    try:
        call()
        message = None
    except tessera.Error as e:
        message = str(e)
    texts = [None] * dist.get_world_size()
    dist.all_gather_object(texts, message)
    assert message and len(set(texts)) == 1 and all(part in message for part in parts), texts


def check_refusals(directory, model_state):
    rank, group = dist.get_rank(), dist.group.WORLD
    load = lambda state, key=KEY, path=directory: tessera.load_sharded_optimizer_state(path, key, state)
    on_last = lambda state: state if rank == dist.get_world_size() - 1 else model_state
    last = f"rank {dist.get_world_size() - 1}: "
    refused(lambda: load(on_last({**model_state, "extra_state": 5})), last, "'extra_state' of the model's state is of type int, which has no size")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    one = ShardMetadata([0, 0], [4, 2], f"rank:{rank}/cpu")
    refused(lambda: load(on_last({"0.weight": nested(distribute_tensor(torch.ones(4, 2), mesh, [ShardOn(0)]), one, (4, 2), group)})), last, "is a DTensor inside a ShardedTensor")
    two = nested(rows([4, 2], group), one, (4, 2), group)
    two._local_shards = two._local_shards * 2
    refused(lambda: load(on_last({"0.weight": two})), last, "has 2 shards on this rank")
    dtensor = distribute_tensor(torch.ones(4, 2), mesh, [ShardOn(0)])
    dtensor._local_tensor = rows([4, 2], group)
    refused(lambda: load(on_last({"0.weight": dtensor})), last, "is a ShardedTensor inside a DTensor")
    refused(lambda: load(on_last({"0.weight": nested(rows([5, 7], group), ShardMetadata([0, 0], [5, 7], one.placement), (5, 7), group)})), last, "is [5, 6] in the checkpoint, but '0.weight' is [5, 7]")
    refused(lambda: load(on_last(sliced_state(0, group))), "differ: the model's state is 1-D on rank 0, but 2-D (FSDP over tensor parallel) on rank")
    refused(lambda: load(model_state, KEY if rank else "model"), "the optimizer's key is 'model' on rank 0, but 'optimizer' on rank 1")
    refused(lambda: load(model_state, "optim"), "rank 0: ", "no entries under the key 'optim'; at its top it has 'model', 'optimizer'")
    refused(lambda: load(model_state, path=directory if rank else directory + "-absent"), "rank 0: ", "absent")
    load(model_state)  # nobody is left waiting


class Kind(enum.Enum):
    FIRST = 1

    def __reduce_ex__(self, protocol):  # as Python 3.12 pickles it, and 3.11 from 3.11.4 on
        return type(self), (self.value,)


def check_objects(directory, model_state):
    """What names classes is run by PyTorch only when that is asked for."""
    path = os.path.join(directory, "objects")
    dcp.save({KEY: {"state": {"0.bias": {"exp_avg": torch.arange(5.0)}}, "param_groups": [{"kind": Kind.FIRST, "params": ["0.bias"]}]}}, checkpoint_id=path)
    stored = dcp.FileSystemReader(path).read_metadata().state_dict_metadata
    name = next(name for name in ("optimizer.param_groups.0.kind", "optimizer.param_groups") if name in stored)  # PyTorch 2.3 saves a list without tensors whole
    refused(lambda: tessera.load_sharded_optimizer_state(path, KEY, model_state), "rank 0: ", f"'{name}' is not data", "unsafe_objects=True")
    same(tessera.load_sharded_optimizer_state(path, KEY, model_state, unsafe_objects=True), load_sharded_optimizer_state_dict(model_state, KEY, dcp.FileSystemReader(path)), path)


def check_warning(directory, model_state):
    lacking = {name: value for name, value in model_state.items() if name != "2.bias"}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        tessera.load_sharded_optimizer_state(directory, KEY, lacking)
    texts = [str(w.message) for w in caught if "optimizer state of" in str(w.message) and w.filename == __file__]
    assert len(texts) == 1 and "1 parameter that the model's state does not have: '2.bias'" in texts[0], texts


def run(rank, world, directory, scratch):
    torch.set_num_threads(1)
    model_state = fsdp_model().state_dict()
    own = os.path.join(directory, f"from{world}")
    check_fsdp(directory, model_state)
    forms = os.path.join(scratch, "forms")
    os.makedirs(forms, exist_ok=True)
    check_forms(forms, model_state)
    if world == 2:
        for t in range(2):
            check_sliced(own, t, dist.group.WORLD)
    elif world == 4:
        for pairs in ([[0, 1], [2, 3]], [[0, 2], [1, 3]]):  # tensor parallel outside, and inside
            groups = [dist.new_group(ranks) for ranks in pairs]
            t = next(t for t, ranks in enumerate(pairs) if rank in ranks)
            check_sliced(own, t, groups[t])
        check_tensor_parallel(os.path.join(scratch, "tp"))
        for t in range(2):  # more ranks than rows
            check_sliced(own, t, dist.group.WORLD, by_pytorch=False)
    check_refusals(own, model_state)
    check_objects(forms, model_state)
    check_warning(own, model_state)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        run_ranks(run, int(sys.argv[1]), sys.argv[2], scratch)
    print("done")
