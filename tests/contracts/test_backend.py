"""What every back end promises: one class, run on all of them through their workers."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from contextlib import ExitStack
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from tests.models.backends import backend_helpers
from tests.models.backends.loopback import NEEDS_SSHD, open_board

from assay.models.graph.tensorfile import load_refs, load_tensors
from assay.models.values.model import Step, StepEnding, Target
from assay.models.worker_process import WorkerProcess

IN_PROCESS = {
    "ort": Target("ort", "ort"),
    "ort:unoptimized": Target("ort:unoptimized", "ort", {"optimize": "none"}),
    "reference": Target("reference", "reference"),
    "openvino": Target("openvino", "openvino"),
    "iree": Target("iree", "iree"),
    "iree:vmvx": Target("iree:vmvx", "iree", {"device": "vmvx"}),
}
COMMANDS = ("command", "ssh")
SAME_CODE = ("ort:unoptimized", "iree:vmvx")  # files and refusals are handled by the code of `ort` and `iree`
PROGRAMS_OWN = pytest.mark.not_for(*COMMANDS)  # a program's own business: we pass on what it prints
# What a back end does not have, by its own word; whatever is not listed must work.
LACKS = {
    ("ort", "bfloat16"),
    ("ort:unoptimized", "bfloat16"),
    ("iree:vmvx", "float16"),
    ("openvino", "int64"),  # its plug-in for processors computes in 32 bits, and says nothing
}


SLOW = ("iree", "iree:vmvx")  # `make test` asks the first two of these questions


@pytest.fixture(
    scope="module",
    params=[
        *(pytest.param(name, marks=pytest.mark.services("backends") if name in SLOW else ()) for name in IN_PROCESS),
        "command",
        pytest.param("ssh", marks=NEEDS_SSHD),
    ],
)
def name(request):
    return request.param


@pytest.fixture(scope="module")
def target(name, tmp_path_factory):
    with ExitStack() as stack:
        if name in COMMANDS:
            options = stack.enter_context(backend_helpers.serve_stand_in(tmp_path_factory.mktemp("stand in")))
        if name == "ssh":
            options |= stack.enter_context(open_board(tmp_path_factory.mktemp("board"))).options
        yield IN_PROCESS[name] if name in IN_PROCESS else Target(name, name, options)


@pytest.fixture(scope="module")
def keeper(target, tmp_path_factory):
    """One worker serves all tests: no job may spoil the next."""
    with WorkerProcess(target, folder=str(tmp_path_factory.mktemp("worker"))) as made:
        yield made


@pytest.fixture
def bench(keeper, tmp_path):
    return backend_helpers.StepRunner(keeper, tmp_path)


@pytest.fixture(scope="module")
def matmul(keeper, tmp_path_factory):
    """An artifact that several tests run."""
    bench = backend_helpers.StepRunner(keeper, tmp_path_factory.mktemp("matmul"))
    made = bench.prepare(bench.save(backend_helpers.MATMUL))
    assert made.is_ok, (made.message, made.stderr)
    return made.path


def numbers(*shape, dtype=np.float32):
    return np.random.normal(size=shape).astype(dtype)  # noqa: NPY002 - the global one is seeded for each test


def assert_product(outcome, feed):
    np.testing.assert_allclose(load_tensors(outcome.path)["y"], feed["a"] @ feed["b"], rtol=1e-5, atol=1e-6)


class TestBackend:
    @pytest.mark.not_for(*SAME_CODE)
    @pytest.mark.parametrize(
        ("change", "words"),
        [
            (lambda feed: feed.pop("b"), "b"),
            pytest.param(lambda feed: feed.update(z=numbers(1)), "z", marks=PROGRAMS_OWN),
            pytest.param(lambda feed: feed.update(a=numbers(2, 3, dtype=np.float64)), "float64", marks=PROGRAMS_OWN),
            pytest.param(lambda feed: feed.update(a=numbers(3, 3)), "a", marks=PROGRAMS_OWN),
            pytest.param(lambda feed: feed.update(a=numbers(6)), "a", marks=PROGRAMS_OWN),
        ],
        ids=["missing", "extra", "type", "shape", "rank"],
    )
    def test_inputs_that_do_not_fit(self, bench, matmul, change, words):
        feed = {"a": numbers(2, 3), "b": numbers(3, 4)}
        change(feed)
        outcome = bench.run(matmul, feed, ["y"])
        assert (outcome.step, outcome.ending) == (Step.RUN, StepEnding.ERROR)
        assert words in outcome.message + outcome.stderr
        assert "\n" not in outcome.message

    def test_an_operator_that_nobody_has_and_its_command_fails_again_wherever_it_is_pasted(self, bench, name):
        outcome = bench.prepare(bench.save(backend_helpers.FOREIGN))
        assert outcome.ending is (StepEnding.ERROR if name in COMMANDS else StepEnding.UNSUPPORTED)
        assert "Foo" in outcome.message
        assert outcome.command
        if name not in (*SAME_CODE, "ssh"):  # a line for the board, where our files are gone by now
            done = subprocess.run(["bash", "-c", outcome.command], cwd="/", capture_output=True, text=True, check=False)
            assert done.returncode
            assert "Foo" in done.stdout + done.stderr

    @pytest.mark.not_for(*SAME_CODE)
    @pytest.mark.parametrize("content", [b"", b"not a model at all\n" * 100, None], ids=["empty", "text", "not there"])
    def test_a_file_that_is_no_model(self, bench, content):
        path = bench.make_folder() / "nowhere.onnx"
        if content is not None:
            path.write_bytes(content)
        outcome = bench.prepare(path)
        assert outcome.ending is StepEnding.ERROR
        assert outcome.message
        assert content is not None or "nowhere.onnx" in outcome.message + outcome.stderr

    @PROGRAMS_OWN
    def test_an_artifact_that_is_damaged(self, bench, matmul):
        broken = bench.make_folder() / os.path.basename(matmul)
        broken.write_bytes(b"damaged" * 100)
        outcome = bench.run(broken, {"a": numbers(2, 3), "b": numbers(3, 4)}, ["y"])
        assert outcome.ending is StepEnding.ERROR

    @PROGRAMS_OWN
    @pytest.mark.not_for(*SAME_CODE)
    def test_an_output_that_the_model_does_not_have(self, bench, matmul):
        outcome = bench.run(matmul, {"a": numbers(2, 3), "b": numbers(3, 4)}, ["y", "nope"])
        assert outcome.ending is StepEnding.ERROR
        assert "nope" in outcome.message + outcome.stderr

    def test_a_product_of_inputs_that_go_by_name_repeated_and_timed(self, bench, matmul):
        feed = {"b": numbers(3, 4), "a": numbers(2, 3)}
        once, thrice = bench.run(matmul, feed, ["y"]), bench.run(matmul, feed, ["y"], repeats=3)
        assert once.is_ok, once.stderr
        assert once.command
        assert_product(once, feed)
        refs = [load_refs(each.path) for each in (once, thrice)]
        assert [(ref.name, ref.dtype, ref.shape) for ref in refs[0]] == [("y", "float32", (2, 4))]
        assert [ref.sha for ref in refs[0]] == [ref.sha for ref in refs[1]]
        assert (len(once.times_s), len(thrice.times_s)) == (1, 3)
        assert all(0 < seconds <= thrice.elapsed_s for seconds in thrice.times_s)

    def test_several_outputs_in_the_order_that_was_asked_for(self, bench):
        feed = {"b": numbers(2), "a": numbers(4)}
        made = bench.prepare(bench.save(backend_helpers.SPLIT))
        outcome = bench.run(made.path, feed, ["z", "y", "c"])
        assert [ref.name for ref in load_refs(outcome.path)] == ["z", "y", "c"]
        found = load_tensors(outcome.path)
        np.testing.assert_array_equal(found["y"], feed["a"][:1])
        np.testing.assert_array_equal(found["z"], feed["a"][1:])
        np.testing.assert_array_equal(found["c"], -feed["b"])
        part = bench.run(made.path, feed, ["c", "y"])
        assert [ref.name for ref in load_refs(part.path)] == ["c", "y"]

    def test_integers_are_exact_and_keep_their_type(self, bench, name):
        large = 2**28 if (name, "int64") in LACKS else 2**62
        feed = {
            "a": np.array([large, -large, 3]),
            "b": np.array([5, large + 1, -7]),
            "u": np.array([100, 127, 3], np.uint8),  # an overflow is not defined
            "p": np.array([True, False, True]),
        }
        found = bench.compute(backend_helpers.INTEGERS, feed)
        assert {name: array.dtype.name for name, array in found.items()} == {"s": "int64", "v": "uint8", "q": "bool"}
        np.testing.assert_array_equal(found["s"], feed["a"] + feed["b"])
        np.testing.assert_array_equal(found["v"], feed["u"] + feed["u"])
        np.testing.assert_array_equal(found["q"], ~feed["p"])

    @pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
    def test_small_floats(self, bench, name, dtype):
        text = backend_helpers.MATMUL.replace("float[", f"{dtype}[")
        kind = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
        feed = {"a": numbers(2, 3).astype(kind), "b": numbers(3, 4).astype(kind)}
        if (name, dtype) in LACKS:  # it has to say so
            outcome = bench.prepare(bench.save(text))
            assert outcome.ending in (StepEnding.UNSUPPORTED, StepEnding.ERROR)
            assert outcome.message
            return
        found = bench.compute(text, feed)["y"]
        assert found.dtype == kind
        exact = feed["a"].astype(np.float64) @ feed["b"].astype(np.float64)
        np.testing.assert_allclose(found.astype(np.float64), exact, rtol=0.03, atol=0.03)

    @PROGRAMS_OWN
    def test_one_artifact_takes_any_batch(self, bench):
        made = bench.prepare(bench.save(backend_helpers.DYNAMIC))
        for batch in (1, 5):
            feed = {"a": numbers(batch, 3), "b": numbers(3, 4)}
            assert_product(bench.run(made.path, feed, ["y"]), feed)

    def test_single_numbers_and_odd_names(self, bench):
        names = {"a": "in/a:0", "b": "größe b", "y": "out/y:0", "z": "z'\"$HOME"}
        model = backend_helpers.rename(backend_helpers.parse(backend_helpers.ODD_NAMES), **names)
        feed = {names["a"]: numbers(2, 2), names["b"]: np.asarray(numbers(1)[0])}
        found = bench.compute(model, feed)
        np.testing.assert_allclose(found[names["y"]], feed[names["a"]] + feed[names["b"]], rtol=1e-6)
        assert found[names["z"]].shape == ()
        assert found[names["z"]] == -feed[names["b"]]

    @PROGRAMS_OWN
    def test_weights_that_are_listed_as_inputs_are_none(self, bench):
        model = backend_helpers.parse("g (float[2,3] a, float[3,3] w) => (float[2,3] y) { y = MatMul(a, w) }")
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.eye(3, dtype=np.float32) * 2, "w"))
        feed = {"a": numbers(2, 3)}
        np.testing.assert_allclose(bench.compute(model, feed)["y"], feed["a"] * 2, rtol=1e-6)

    def test_external_data_comes_along_and_is_named_where_it_is_missing(self, bench):
        path = bench.make_folder() / "model.onnx"
        weight = backend_helpers.build_external(path)
        made = bench.prepare(path)
        assert made.is_ok, (made.message, made.stderr)
        (path.parent / "weights.bin").unlink()
        feed = {"a": numbers(2, 64)}
        outcome = bench.run(made.path, feed, ["y"])
        np.testing.assert_allclose(load_tensors(outcome.path)["y"], feed["a"] @ weight, rtol=1e-4, atol=1e-5)
        missing = bench.prepare(path)
        assert missing.ending is StepEnding.ERROR
        assert "weights.bin" in missing.message + missing.stderr

    @pytest.mark.not_for(*SAME_CODE)
    def test_everything_that_is_made_lies_in_the_jobs_folder_and_an_artifact_works_from_a_copy(self, bench, tmp_path):
        path, before = bench.save(backend_helpers.MATMUL), set(os.listdir("."))
        inputs = bench.write(feed := {"a": numbers(2, 3), "b": numbers(3, 4)})
        known = backend_helpers.files_below(path.parent), backend_helpers.files_below(inputs)
        made = bench.prepare(path)
        elsewhere = bench.make_folder() / "copy of it" / os.path.basename(made.path)
        elsewhere.parent.mkdir()
        shutil.copyfile(made.path, elsewhere)
        for outcome in bench.outcomes:
            shutil.rmtree(os.path.dirname(outcome.path))
        ran = bench.step(Step.RUN, elsewhere, inputs=inputs, outputs=("y",))
        assert_product(ran, feed)
        assert Path(ran.path).parent.parent == tmp_path
        assert (backend_helpers.files_below(path.parent), backend_helpers.files_below(inputs)) == known
        assert set(os.listdir(".")) == before
        assert backend_helpers.files_below(Path(ran.path).parent) == ["outputs/0.npy", "outputs/tensors.json"]

    @pytest.mark.not_for("reference")  # the evaluator has none
    def test_profiles_go_where_they_are_wanted(self, bench, name, tmp_path):
        folders = tmp_path / "compile profile", tmp_path / "run profile"
        made = bench.prepare(bench.save(backend_helpers.MATMUL), profile_dir=str(folders[0]))
        ran = bench.run(made.path, {"a": numbers(2, 3), "b": numbers(3, 4)}, ["y"], profile_dir=str(folders[1]))
        assert ran.is_ok, (ran.message, ran.stderr)
        assert ran.profiles
        assert all(Path(path).parent == folders[1] and os.path.getsize(path) for path in ran.profiles)
        assert all(Path(path).parent == folders[0] for path in made.profiles)
        assert bool(made.profiles) == (name.startswith("iree") or name in COMMANDS)

    @pytest.mark.not_for(*SAME_CODE)
    def test_a_hostile_folder(self, keeper, tmp_path):
        folder = tmp_path / '-n it\'s "größe"\n$(x)  '
        folder.mkdir()
        bench = backend_helpers.StepRunner(keeper, folder)
        feed = {"a": numbers(2, 3), "b": numbers(3, 4)}
        made = bench.prepare(bench.save(backend_helpers.MATMUL))
        assert_product(bench.run(made.path, feed, ["y"]), feed)

    @pytest.mark.not_for(*SAME_CODE)
    def test_it_says_who_it_is_always_the_same(self, keeper, target, tmp_path):
        identity = keeper.identity()
        assert identity
        assert all(isinstance(text, str) and text for pair in identity.items() for text in pair)
        with WorkerProcess(target, folder=str(tmp_path)) as other:
            assert json.dumps(other.identity()) == json.dumps(identity)


def test_a_slow_one_computes_a_product_and_names_an_operator_that_nobody_has(tmp_path):
    feed = {"a": numbers(2, 3), "b": numbers(3, 4)}
    with WorkerProcess(IN_PROCESS[SLOW[0]], folder=str(tmp_path / "worker")) as keeper:
        bench = backend_helpers.StepRunner(keeper, tmp_path)
        assert_product(bench.run(bench.prepare(bench.save(backend_helpers.MATMUL)).path, feed, ["y"]), feed)
        outcome = bench.prepare(bench.save(backend_helpers.FOREIGN))
    assert outcome.ending is StepEnding.UNSUPPORTED
    assert "Foo" in outcome.message
