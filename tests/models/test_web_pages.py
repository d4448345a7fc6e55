"""The page of the models: checks, their graph and tensors, and sessions of tests."""

from __future__ import annotations

import html
import json
import math
import os

import numpy as np
import pytest
from tests.bench_samples import execution
from tests.models.report.model_reports import bad_report, good_report, large_report, report
from tests.web_client import open_client

from assay.bench.flow.archive import write_as_run
from assay.compat.torq.session_runs import store_session
from assay.follow.api import StudyLocation, open_index
from assay.models import session_pages
from assay.models.pages import build_graph, build_history, build_report, list_checks, list_diffs
from assay.models.records import MODEL_FILE, write_report
from assay.models.values.model import Step, StepEnding, StepOutcome
from assay.models.values.tensors import Tolerance
from assay.record import run_directory
from assay.system.fast_dataclasses import asdict, replace
from assay.system.files import write_new
from assay.values import layout
from assay.values.run import Outcome, RunSpec, spec_id
from assay.values.state import State
from assay.values.study import CodePolicy
from assay.values.verdict import Verdict, VerdictKind


def write(root, name, found, at=1e9, state=State.DONE):
    run_dir = root / "model" / name
    run_dir.parent.mkdir(parents=True, exist_ok=True)
    params = {"model": "models/m.onnx", "goal": "check", "reference": "ort", "target": "iree", "id": name}
    spec = RunSpec(spec_id((), params), name, params, (), title=name.split("_", maxsplit=1)[0], code=CodePolicy("live"))
    record = run_directory.RunRecord(spec, "model", run_directory.new_uid(), at, workdir=".")

    def fill(aside):
        outcome = Outcome(state, 1, reason="its process died" if found is None else "", started_at=at, ended_at=at)
        write_new(os.path.join(aside, layout.numbered_name("outcome", 1)), json.dumps(asdict(outcome)))

    run_directory.write_run_dir(str(run_dir), record, "", fill)
    if found is not None:
        write_report(str(run_dir), found)
    return run_dir


def with_tensors(run_dir):
    paths = []
    for word, array in (("expected", np.ones((2, 4), np.float32)), ("actual", np.arange(8.0).reshape(2, 4))):
        folder = run_dir / "tensors" / "m_layer_MatMul_1" / word
        folder.mkdir(parents=True)
        np.save(folder / "0.npy", array.astype(np.float32))
        paths.append(str(folder / "0.npy"))
    found = bad_report()
    cases = tuple(replace(case, diffs=(tuple(paths),)) if case.diffs else case for case in found.cases)  # type: ignore[arg-type]
    return replace(found, cases=cases)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    write(root, "m_iree_1", good_report(), 1e9)
    bad = write(root, "m_iree_2", good_report(), 1e9 + 60)
    write_report(str(bad), with_tensors(bad))
    write(root, "other_1", replace(good_report(), stem="<b>other"), 1e9 + 5)
    died = write(root, "died_1", None, 1e9 + 70, State.FAILED)
    assert not (died / MODEL_FILE).exists()
    broken = write(root, "broken_1", replace(good_report(), stem="broken"), 1e9 + 80)
    (broken / MODEL_FILE).write_text('{"format": 1, "model"')
    for number, outcomes in enumerate((("passed", "passed", "xfail"), ("failed", "passed", "xpass", "passed"))):
        store(root, number, outcomes)
    return root


def store(root, number, outcomes):
    folder, aside = root.parent / f"zip{number}{root.name}", root.parent / f"aside{number}{root.name}"
    folder.mkdir()
    aside.mkdir()
    tests = []
    for n, word in enumerate(outcomes):
        measurements = {"run_ms": 1.5 + n + number, f"only{n}": 1.0}
        tests.append({"module": "t", "name": f"test_{n}", "outcome": word, "measurements": measurements})
    tests[2]["linked_issue"] = "tracker#7"
    manifest = {"test_plan": "nightly", "batch_name": f"b{number}", "git_commit": "c" * 40, "test_runs": tests}
    (folder / "test_session.json").write_text(json.dumps(manifest))
    store_session(str(folder), str(aside), str(root), 1.7e9 + number)


@pytest.fixture(scope="module")
def client(root):
    with open_client(root) as client:
        yield client


def find_row(text, name):
    return next(row for row in text.split("<tr") if name in row)


def change_cases(report, **changes):
    return replace(report, cases=tuple(replace(case, **changes) for case in report.cases))


def change_tensors(report, **changes):
    first, *rest = report.cases
    assert first.local
    return replace(report, cases=(replace(first, local=tuple(replace(each, **changes) for each in first.local)), *rest))


DOUBTFUL = {
    "no_samples": lambda report: replace(report, samples=0),
    "no_cases": lambda report: replace(report, cases=()),
    "no_comparisons": lambda report: change_cases(report, verdict=Verdict(VerdictKind.PASS, (), 0)),
    "fewer_than_none": lambda report: change_cases(report, verdict=Verdict(VerdictKind.PASS, (), -5)),
    "a_failure": lambda report: change_cases(report, verdict=Verdict(VerdictKind.FAIL, (), 5)),
    "a_crash": lambda report: change_cases(report, steps=(StepOutcome(Step.RUN, StepEnding.CRASH),)),
    "nan": lambda report: change_tensors(report, max_rel=math.nan, max_abs=math.nan),
    "no_bound": lambda report: change_tensors(report, tolerance=Tolerance(rel=math.nan)),
}


def test_a_run_that_is_not_done_and_numbers_that_prove_nothing_are_no_pass(tmp_path):
    """On the list, on the page and in `assay report`. A run may have left the report of an earlier attempt."""
    assert good_report().verdict.kind is VerdictKind.PASS
    states = [state for state in State if state not in (State.DONE, State.DAMAGED)]
    for state in states:
        write(tmp_path, f"state_{state}", replace(good_report(), stem=str(state)), state=state)
    for name, change in DOUBTFUL.items():
        write(tmp_path, name, change(replace(good_report(), stem=name)))
    with open_client(tmp_path) as client:
        listed = client.get("/models").text
        for run in (*(f"state_{state}" for state in states), *DOUBTFUL):
            for text in (find_row(listed, f"checks/{run}"), client.get(f"/models/model/checks/{run}").text):
                assert 'class="badge PASS"' not in text, run
                assert 'class="badge ERROR"' in text or 'class="badge FAIL"' in text, run
                assert "the run is " in text or run in DOUBTFUL
            document = build_report(StudyLocation(str(tmp_path), "model"), run)
            assert not document.title.startswith("PASS"), run


class TestList:
    def test_the_last_verdict_of_each_model_and_what_has_no_report_is_no_pass(self, client):
        text = client.get("/models").text
        row = find_row(text, "checks/m_iree_2")
        assert 'class="badge ERROR">ERROR' in row.partition("<a")[0]
        assert "MatMul_1" in row
        row = find_row(text, "checks/broken_1")
        assert "no result" in row.partition("<a")[0]
        assert "is damaged" in row
        assert "<b>other" not in text

    def test_a_report_that_changes_in_its_place(self, tmp_path):
        run_dir = write(tmp_path, "m_1", good_report())
        with open_client(tmp_path) as client:
            assert 'class="badge PASS"' in find_row(client.get("/models").text, "checks/m_1")
            for text in ("{", json.dumps({**json.loads((run_dir / MODEL_FILE).read_text()), "cases": []})):
                (run_dir / MODEL_FILE).write_text(text)
                assert 'class="badge PASS"' not in client.get("/models").text

    def test_nothing(self, tmp_path):
        with open_client(tmp_path) as client:
            assert "assay model check" in client.get("/models").text


class TestCheck:
    def test_its_document_graph_and_history(self, client):
        text = client.get("/models/model/checks/m_iree_2").text
        assert 'The first wrong layer is <a href="#first">MatMul_1</a>' in text
        assert text.count('id="first"') == 1
        for part in (
            "Error by layer",
            'class="node firstwrong"',
            'class="half l4"',
            "Accuracy and time over checks",
            "checks/m_iree_1",
            'href="#row-m_layer_MatMul_1"',
            'id="node-m_layer_MatMul_1"',
            'href="#node-m_layer_MatMul_1"',
        ):
            assert part in text
        row = text.partition('id="row-m_layer_MatMul_1"')[2].partition("</tr>")[0]
        assert all(part in row for part in ("first wrong", 'class="level l', ">diff"))
        good = client.get("/models/model/checks/m_iree_1").text
        assert 'class="badge PASS"' in good
        assert "firstwrong" not in good

    def test_the_head_has_short_facts(self, tmp_path):
        """Where tools and files lie is folded away; links to other pages are not where one came from."""
        tools = {"compile: words": "/opt/tools/compile --with words"}
        write(tmp_path, "m_1", replace(good_report(), model="/home/me/m.onnx", tools=tools))
        with open_client(tmp_path) as client:
            text = client.get("/models/model/checks/m_1").text
        head, _, folded = text.partition("<summary>Provenance")
        assert "m.onnx, reference ort" in head
        assert "/opt/tools/compile" not in head
        assert "/home/me/m.onnx" not in head
        assert "/opt/tools/compile" in folded
        back = text.partition('aria-label="Where this page is"')[2].partition("</nav>")[0]
        assert back.count("<a ") == 1
        also = text.partition('aria-label="See also"')[2].partition("</nav>")[0]
        assert "/runs/m_1" in also

    def test_its_times_in_the_benchmarks(self, tmp_path):
        write(tmp_path, "m_iree_1", good_report())
        with open_client(tmp_path) as client:
            assert "Times over all checks" not in client.get("/models/model/checks/m_iree_1").text
        location = StudyLocation(str(tmp_path), "bench")
        os.mkdir(location.dir)
        assert write_as_run(location, replace(execution(1, 1.0), method="model.m.iree"), None)
        with open_client(tmp_path) as client:
            text = client.get("/models/model/checks/m_iree_1").text
            address = text.rpartition('">Times over all checks')[0].rpartition('"')[2]
            assert client.get(address).status_code == 200

    @pytest.mark.parametrize(("run", "said"), [("broken_1", "is damaged"), ("died_1", "its process died")])
    def test_what_cannot_be_read_is_reported(self, client, run, said):
        answer = client.get(f"/models/model/checks/{run}")
        assert answer.status_code == 200
        assert said in answer.text
        assert "badge PASS" not in answer.text.partition("Checks of this model")[0]

    def test_find_a_layer(self, client):
        rows = [
            client.get(f"/models/model/checks/m_iree_2?{query}").text.count('<tr id="row-')
            for query in ("", "layer=matmul", "wrong=1", "layer=nothing")
        ]
        assert rows[0] > rows[1] > 0
        assert rows[0] > rows[2] > 0
        assert rows[3] == 0
        assert "No layer matches" in client.get("/models/model/checks/m_iree_2?layer=nothing").text

    def test_tensors(self, client):
        page = "/models/model/checks/m_iree_2/tensors"
        text = client.get(f"{page}?case=m_layer_MatMul_1&number=0").text
        assert "<h1>MatMul_1 of m on iree" in text
        assert text.count("/expected/0.npy") == 1
        assert "up to 100 times the tolerance" in text
        assert "Worst elements" in text
        assert ">t2 <" in text.replace("\n", "")  # the tensor's name, which its file does not tell
        assert "1e-05 * max" in text  # by the bounds of the check
        for query in ("case=m_layer_MatMul_2", "case=m_layer_MatMul_1&number=9", ""):
            assert client.get(f"{page}?{query}").status_code == 404
        assert client.get(f"{page}?case=m_layer_MatMul_1&number=x").status_code == 400

    def test_tensors_that_differ_open_at_the_first_wrong_layer(self):
        early, first = (replace(bad_report().cases[1], name=name) for name in ("m_layer_Add_0", "m_layer_MatMul_1"))
        found = report(early, first, first_wrong="m_layer_MatMul_1")
        assert [link.case for link in list_diffs(found)] == ["m_layer_MatMul_1", "m_layer_Add_0"]

    def test_other_tensors_by_their_layers(self, tmp_path):
        run_dir = write(tmp_path, "m_1", good_report())
        found = with_tensors(run_dir)
        diffs = next(case.diffs for case in found.cases if case.diffs)
        write_report(str(run_dir), replace(found, cases=tuple(replace(case, diffs=diffs) for case in found.cases)))
        with open_client(tmp_path) as client:
            text = client.get("/models/model/checks/m_1/tensors?case=m_layer_MatMul_1").text
        head, _, rest = text.partition('aria-label="Tensors that differ"')
        assert "<h1>" in head
        chips = rest.partition("</nav>")[0]
        assert 'aria-current="page">MatMul_1</a>' in chips
        assert ">m_layer" not in chips

    def test_tensors_elsewhere_are_not_read(self, tmp_path):
        secret = tmp_path / "secret.npy"
        np.save(secret, np.arange(3))
        root = tmp_path / "runs"
        found = bad_report()
        cases = tuple(replace(c, diffs=((str(secret), str(secret)),)) if c.diffs else c for c in found.cases)
        write(root, "m_1", replace(found, cases=cases))
        with open_client(root) as client:
            answer = client.get("/models/model/checks/m_1/tensors?case=m_layer_MatMul_1")
            assert answer.status_code == 400
            assert "not in the directory of the run" in answer.text

    @pytest.mark.parametrize("path", ["model/checks/m_iree_9", "mode/checks/m_iree_1", "fit/checks/x"])
    def test_unknown_names(self, client, path):
        assert client.get(f"/models/{path}").status_code == 404

    def test_layer_times_side_by_side(self, client):
        text = client.get("/models/model/times?run=m_iree_1&run=m_iree_2").text
        assert "1: m on iree" in text
        assert "2: m on iree" in text
        assert "compile error" in find_row(text, "Gemm_4")
        assert client.get("/models/model/times").status_code == 200
        assert client.get("/models/model/times?run=nothing").status_code == 404


class TestGraph:
    def test_layers_are_below_what_they_read(self):
        graph = build_graph(bad_report())
        assert [node.y for node in graph.nodes] == sorted(node.y for node in graph.nodes)
        assert len(graph.edges) == len(graph.nodes) - 1
        assert [node.layer.local_level for node in graph.nodes] == [1, 4, 1, 5, 5]
        assert [node.layer.accumulated_level for node in graph.nodes] == [1, 4, 4, None, None]

    def test_an_edge_over_several_rows_crosses_no_name(self):
        found = bad_report()
        cases = list(found.cases)
        first, last = cases[0].layer, cases[2].layer
        assert first
        assert last
        cases[2] = replace(cases[2], layer=replace(last, inputs=(*last.inputs, *first.outputs)))
        graph = build_graph(replace(found, cases=tuple(cases)))
        (path,) = [each for each in graph.edges if "H" in each]
        x = float(path.partition("h")[0].partition(" ")[0][1:])
        assert x >= max(node.x + graph.node_width for node in graph.nodes)  # its way down, beside the column
        assert graph.width > x

    def test_of_a_large_model_a_part(self):
        graph = build_graph(large_report(1000, 700))
        assert len(graph.nodes) + graph.left_out == 1000
        assert any(node.layer.is_first for node in graph.nodes)

    def test_a_report_without_layers(self):
        assert build_graph(report()) is None


def test_a_history_of_two(root, client):
    assert client.get("/models").status_code == 200  # the index has read the runs
    with open_index(str(root)) as index:
        checks = list_checks(StudyLocation(str(root), "model"), index.load_runs(["model"]))
    mine = [check for check in reversed(checks) if check.subject == ("m", "iree") and check.kind]
    assert [check.kind for check in mine] == [VerdictKind.PASS, VerdictKind.ERROR]
    (section,) = build_history(mine)
    assert len(section.blocks) == 3  # type: ignore[union-attr]
    assert not list(build_history(mine[:1]))


class TestSession:
    def address(self, client):
        text = client.get("/models").text
        return text.partition("Sessions of torq-nightly")[2].partition('href="')[2].partition('"')[0]

    def test_the_matrix_against_the_session_before(self, client):
        text = client.get(self.address(client)).text
        assert "batch b1" in text
        assert '<p class="answer">1 worse, 1 better, 1 new.</p>' in text
        matrix = text.partition("Outcomes: baseline")[2].partition("</table>")[0]
        heads = [each.partition("<")[0] for each in matrix.split('class="num">')[1:7]]
        assert {"failed", "not there"} <= set(heads)
        lines = text.partition('id="tests"')[2]
        first = lines.split("<tr>")[2]
        assert "worse" in first
        assert "t::test_0" in first
        assert "new" in find_row(lines, "t::test_3")
        assert "tracker#7" in find_row(text.partition("Expected failures")[2], "t::test_2")
        largest = text.partition("Largest changes of measurements")[2].partition("</table>")[0]
        assert "+66.7%" in find_row(largest, "t::test_0")

    def test_a_test_whose_run_is_damaged_or_not_done_has_not_passed(self, tmp_path):
        store(tmp_path, 0, ("passed", "passed", "xfail", "passed"))
        first, second, _, last = sorted(path for path in (tmp_path / "torq-nightly").iterdir() if path.name != ".assay")
        (first / "run.json").write_text("{")
        outcome = json.loads((second / layout.numbered_name("outcome", 1)).read_text())
        (second / layout.numbered_name("outcome", 1)).write_text(json.dumps({**outcome, "state": "failed"}))
        content = json.loads((last / "run.json").read_text())
        del content["spec"]["params"]["outcome"]
        (last / "run.json").write_text(json.dumps(content))
        with open_client(tmp_path) as client:
            assert "1 damaged, 1 failed, 1 unknown, 1 xfail" in client.get("/models").text
            lines = client.get(self.address(client)).text.partition('id="tests"')[2]
            assert "damaged" in find_row(lines, first.name)
            assert "passed" not in lines.partition("<tbody>")[2]

    def test_measurements_side_by_side(self, client):
        address = self.address(client)
        lines = client.get(address).text.partition('id="tests"')[2]
        runs = [each.partition('"')[0] for each in lines.split('name="test" value="')[1:3]]
        text = client.get(address, params={"test": runs}).text.partition("Measurements side by side")[2]
        assert "run_ms" in text
        assert "only0" in text

    def test_a_cell_of_the_matrix_leads_to_its_tests(self, client):
        text = client.get(self.address(client)).text
        cell = next(each for each in text.split("<td") if "before=passed&amp;now=failed" in each)
        assert 'class="num worse"' in cell
        assert "worse" in cell.partition("</a>")[2]  # in words too
        path = html.unescape(cell.partition('href="')[2].partition('"')[0])
        lines = client.get(path).text.partition('id="tests"')[2]
        assert "1 of 4 tests" in lines
        assert "t::test_0" in lines
        assert "t::test_1" not in lines
        assert "t::test_1" in client.get(f"{path.partition('?')[0]}?q=TEST_1").text.partition('id="tests"')[2]

    def test_what_is_worse(self):
        for before, now, change in (
            ("passed", "xpass", "other"),
            ("skipped", "xfail", "other"),
            ("xfail", "error", "worse"),
            ("", "passed", "new"),
        ):
            assert session_pages.TestedLine("t", "r", now, before).change == change

    def test_unknown_ones(self, client):
        assert client.get("/models/torq-nightly/sessions/nothing").status_code == 404
        assert client.get(self.address(client) + "?baseline=nothing").status_code == 404
        assert client.get(self.address(client) + "?test=nothing").status_code == 404
