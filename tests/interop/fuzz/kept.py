"""Jobs as files: what a draw's job was and what PyTorch did, to be compared again without PyTorch."""
import dataclasses
import json
import os

import codec
import compare
import driver
from draws import Draw


def differences(ours, draw, job, described, wants):
    try:
        answers = [codec.decode(a) for a in ours.perform(described)]
    except driver.Died as e:
        return [f"our side {e}"]
    wants = [w if "error" in w else {"out": codec.decode(w["out"])} for w in wants]
    return compare.compare(draw, {"change": None, **job}, [codec.decode(d) for d in described], wants, answers)


def write(directory, draw, number, described, wants):
    os.makedirs(directory, exist_ok=True)
    record = {"draw": json.dumps(dataclasses.asdict(draw)), "number": number, "described": described, "wants": wants}
    with open(os.path.join(directory, f"{'wide-' * draw.wide}{draw.seed}-{draw.number}-{number}.job"), "wb") as f:
        f.write(codec.encode(record))


def replay(ours, path):
    """Differences of a job that was kept."""
    with open(path, "rb") as f:
        record = codec.decode(f.read())
    draw = Draw(**json.loads(record["draw"]))
    return differences(ours, draw, draw.jobs[record["number"]], record["described"], record["wants"])


def replay_all(path, files):
    ours, failed = driver.Driver(path), 0
    for file in files:
        found = replay(ours, file)
        failed += bool(found)
        for difference in found[:4]:
            print(f"DIFFERS {file}: {difference}")
    ours.stop()
    print(f"{len(files)} jobs, {failed} differ")
    return 1 if failed or not files else 0
