"""What TensorFlow 2.21 with protobuf 7 really writes, byte for byte."""

from __future__ import annotations

from pathlib import Path

from assay.bench.child_report import load_child_report, parse_benchmark_entries

FULL = bytes.fromhex(
    "0ac0010a0d4d61744d756c2e73717561726510d00f19000000000000e03f210000000000428f40290000000000000440323d0a03746f7012"
    "3612347b2276616c7565223a20332c2022737563636565646564223a2066616c73652c20226465736372697074696f6e223a202264227d32"
    "110a047261746512090900000000000011403a240a0361636311000000000000e83f1a0909000000000000e03f220909000000000000f03f"
    "3a080a047a65726f1a003a0f0a046261726511000000000000f8bf"
)
BARE = bytes.fromhex("0a1a0a0d4d61744d756c2e6c6974746c6510ffffffffffffffffff01")  # iters=-1 and nothing else


def test_every_field() -> None:
    assert parse_benchmark_entries(FULL) == [
        {
            "name": "MatMul.square",
            "iters": 2000,
            "cpu_time": 0.5,
            "wall_time": 1000.25,
            "throughput": 2.5,
            "extras": {"top": '{"value": 3, "succeeded": false, "description": "d"}', "rate": 4.25},
            "metrics": [
                {"name": "acc", "value": 0.75, "min_value": 0.5, "max_value": 1.0},
                {"name": "zero", "value": 0.0, "min_value": 0.0},
                {"name": "bare", "value": -1.5},
            ],
        }
    ]


def test_what_was_not_reported_is_absent() -> None:
    assert parse_benchmark_entries(BARE) == [{"name": "MatMul.little", "iters": -1, "extras": {}, "metrics": []}]


def test_it_is_found_beside_the_child_s_own_lines(tmp_path: Path) -> None:
    (tmp_path / "proto_MatMul.square").write_bytes(FULL)
    reported = load_child_report(str(tmp_path / "report.jsonl"), str(tmp_path / "proto_"))
    assert [report["wall_time"] for report in reported.reports] == [1000.25]
