"""Run in a fresh process: verify every log in a folder, then damage them and see it named.

`python verify_all.py FOLDER` prints what it did and exits with 1 if something did not hold.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path

import orjson

from nbagent.log import Log, Report, verify
from nbagent.stores.jsonl import JsonlStore

Damage = Callable[[list[bytes], int], list[bytes]]


_numbers = count()


def main(folder: Path) -> int:
    faults: list[str] = []
    samples: dict[tuple[str, str], tuple[bytes, list[bytes], int]] = {}
    sessions = events = 0
    for path in sorted(folder.iterdir()):
        header, *records = path.read_bytes().splitlines()
        report = verify(header, records)
        sessions, events = sessions + 1, events + report.events
        if not report.ok:
            faults.append(f"{path.name}: {report.problems}")
            continue
        form = path.suffix[1:]
        for place, record in enumerate(records[:-1]):
            type_ = orjson.loads(record)["type"]
            best = samples.get((form, type_))
            if best is None or len(best[1]) > len(records):
                samples[form, type_] = (header, records, place)
    damaged = Counter(form for form, _ in samples)
    for (form, type_), (header, records, place) in samples.items():
        for name, damage in DAMAGES.items():
            report = verify(header, damage(records, place))
            seqs = named(records, place)
            if report.ok or not set(seqs) & {seq for seq, _ in report.problems}:
                faults.append(f"{form} {type_}: {name} at {seqs} gave {report}")
    sys.stdout.write(
        f"{sessions} sessions, {events} events verified; damaged: {dict(damaged)} event types\n"
    )
    sys.stdout.write("\n".join(faults))
    return 1 if faults or not sessions else 0


def named(records: Sequence[bytes], place: int) -> list[int]:
    """Seqs of the record, of all chunks of a packed run."""
    record = orjson.loads(records[place])
    return list(range(record["seq"], record["seq"] + record.get("n", 1)))


def alter(records: list[bytes], place: int) -> list[bytes]:
    """One field changed, without touching anything else."""
    record = orjson.loads(records[place])
    data = record["data"]
    for key, value in data.items():
        if isinstance(value, int) and not isinstance(value, bool):
            data[key] = value + 1
            break
        if isinstance(value, str):
            data[key] = value + "x"
            break
    else:
        data["altered"] = True
    return [*records[:place], orjson.dumps(record), *records[place + 1 :]]


def swap(records: list[bytes], place: int) -> list[bytes]:
    """Two neighbours exchanged."""
    pair = [records[place + 1], records[place]]
    return [*records[:place], *pair, *records[place + 2 :]]


def drop(records: list[bytes], place: int) -> list[bytes]:
    """One that is not the last left out."""
    return [*records[:place], *records[place + 1 :]]


DAMAGES: dict[str, Damage] = {"alter": alter, "swap": swap, "drop": drop}


def save(log: Log, folder: Path, *, files: bool = True) -> None:
    """Write a log in both forms: canonical lines, and records if it has a store."""
    number = next(_numbers)
    lines = b"\n".join([log.header_line, *log.lines])
    (folder / f"{number:05}.lines").write_bytes(lines + b"\n")
    if files and isinstance(log.store, JsonlStore) and log.store.path.is_file():
        (folder / f"{number:05}.records").write_bytes(log.store.path.read_bytes())


def check(report: Report) -> None:
    """The report is good."""
    assert report.ok, report.problems


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
