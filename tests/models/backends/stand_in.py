"""A compiler and runner that is a program, as vendors have them: `compile MODEL ARTIFACT` and `run ARTIFACT --input=…`.

The artifact is a zip of the model and its external data; it is run by onnx's evaluator, which takes 0.3 s to import. So
the program asks a server to fork that has imported it (`serve ADDRESS`), where the variable STAND_IN holds its address.
"""

from __future__ import annotations

import os
import socket
import sys


def main():
    words, address = sys.argv[1:], os.environ.get("STAND_IN")
    if words[0] == "serve":
        serve(words[1])
    elif address:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(address)
            socket.send_fds(connection, ["\0".join([os.getcwd(), *words]).encode("utf-8", "surrogateescape")], [1, 2])
            sys.exit(int(connection.recv(4)))
    else:
        import site

        site.main()  # which -S has left out
        work(words)


def serve(address):
    import signal

    import ml_dtypes  # noqa: F401
    import onnx.reference  # noqa: F401

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nothing waits for the children
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(address)
        server.listen()
        while True:
            connection, _ = server.accept()
            if os.fork() == 0:
                answer(connection)
            connection.close()


def answer(connection):
    data, fds, _, _ = socket.recv_fds(connection, 1 << 20, 2)
    folder, *words = data.decode("utf-8", "surrogateescape").split("\0")
    for fd, number in zip(fds, (1, 2), strict=True):
        os.dup2(fd, number)
    os.chdir(folder)
    code = 1
    try:
        code = work(words)
    except SystemExit as exit_:
        print(exit_, file=sys.stderr)
    except BaseException:  # noqa: BLE001
        sys.excepthook(*sys.exc_info())
    sys.stdout.flush()
    sys.stderr.flush()
    connection.send(str(code).encode())
    os._exit(0)


def work(words):
    import argparse

    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["compile", "run"])
    parser.add_argument("paths", nargs="+")
    parser.add_argument("--input", action="append", default=[])  # name=dtype=@path
    parser.add_argument("--output", action="append", default=[])  # name=@path
    parser.add_argument("--profile")
    parser.add_argument("--ir")
    given = parser.parse_args(words)
    print("stand-in:", given.what)
    return compile_model(given) if given.what == "compile" else run_model(given)


def compile_model(given):
    import zipfile

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
    import zipfile

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
    main()
