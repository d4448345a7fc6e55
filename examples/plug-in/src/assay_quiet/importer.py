"""`assay index ingest history.csv`: what the CSVLogger of Keras writes, a line for each epoch."""

import csv
import os

from assay.exchange.api import ImportedRun, ImportedRuns, build_series, parse_number
from assay.record.importers.registry import Importer
from assay.record.importers.sample import Sample

IMPORTERS = (
    Importer("keras", "CSV files of Keras", "runs", "assay_quiet.importer:is_log", "assay_quiet.importer:load_log"),
)


def is_log(sample: Sample) -> bool:
    columns = sample.first_line.split(",")
    return columns[0] == "epoch" and "val_loss" in columns


def load_log(path: str) -> ImportedRuns:
    points: dict[str, list[tuple[float | None, float, float | None]]] = {}
    with open(path, encoding="utf-8", newline="") as file:
        for number, row in enumerate(csv.DictReader(file)):
            step = parse_number(row.pop("epoch")) or float(number)
            for name, text in row.items():
                value = parse_number(text or "")
                if value is not None:
                    points.setdefault(name, []).append((step, value, None))
    name = os.path.splitext(os.path.basename(path))[0]
    series = {metric: build_series(values) for metric, values in points.items()}
    return ImportedRuns((ImportedRun(id=os.path.abspath(path), name=name, study="keras", points=series),))
