"""A compiler and runner that is a program, as vendors have them: `compile MODEL ARTIFACT` and `run ARTIFACT --input=…`.

The artifact is a zip of the model and its external data; it is run by onnx's evaluator. Options make it misbehave.
"""

from __future__ import annotations

import argparse
import os
import sys
import zipfile


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["compile", "run"])
    parser.add_argument("paths", nargs="+")
    parser.add_argument("--input", action="append", default=[])  # name=dtype=@path
    parser.add_argument("--output", action="append", default=[])  # name=@path
    parser.add_argument("--profile")
    parser.add_argument("--ir")
    given = parser.parse_args()
    print("stand-in:", given.what)
    return compile_model(given) if given.what == "compile" else run_model(given)


def compile_model(given):
    import onnx
    from onnx.reference import ReferenceEvaluator

    source, target = given.paths
    ReferenceEvaluator(source)
    model = onnx.load(source)
    if not model.graph.node:
        sys.exit("this is no model")
    with zipfile.ZipFile(target, "w") as archive:
        archive.writestr("model.onnx", model.SerializeToString())
    if given.ir:
        with open(os.path.join(given.ir, "passes.txt"), "w", encoding="utf-8") as stream:
            stream.write(str(model.graph))
    if given.profile:
        write_profile(os.path.join(given.profile, "compile.csv"))
    return 0


def run_model(given):
    import io

    import ml_dtypes
    import numpy as np
    import onnx
    from onnx.reference import ReferenceEvaluator

    with zipfile.ZipFile(given.paths[0]) as archive:
        model = onnx.load(io.BytesIO(archive.read("model.onnx")))
    feed = {}
    for text in given.input:
        head, _, path = text.partition("=@")
        name, _, dtype = head.rpartition("=")
        array = np.load(path)
        feed[name] = array.view(getattr(ml_dtypes, dtype)) if hasattr(ml_dtypes, dtype) else array
    check(model, feed)
    found = dict(
        zip([value.name for value in model.graph.output], ReferenceEvaluator(model).run(None, feed), strict=True)
    )
    for text in given.output:
        name, _, path = text.partition("=@")
        array = np.asarray(found[name])
        if path.endswith(".npy"):
            np.save(path, array)
        else:
            array.tofile(path)
    if given.profile:
        write_profile(os.path.join(given.profile, "run.csv"))
    print("done", file=sys.stderr)
    return 0


def check(model, feed):
    import onnx

    wanted = {value.name: value.type.tensor_type for value in model.graph.input}
    if set(wanted) != set(feed):
        sys.exit(f"inputs are {sorted(wanted)}, not {sorted(feed)}")
    for name, kind in wanted.items():
        shape = [dim.dim_value if dim.HasField("dim_value") else None for dim in kind.shape.dim]
        fits = len(shape) == feed[name].ndim and all(
            a in (None, b) for a, b in zip(shape, feed[name].shape, strict=True)
        )
        dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
        if not fits or feed[name].dtype != dtype:
            sys.exit(f"{name} is {feed[name].dtype}{feed[name].shape}, not {dtype}{shape}")


def write_profile(path):
    with open(path, "w", encoding="utf-8") as stream:
        stream.write("name,start_us,duration_us\nall,0,1\n")


if __name__ == "__main__":
    sys.exit(main())
