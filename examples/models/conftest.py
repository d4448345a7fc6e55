"""Makes the models where they are missing, and lets the stand-in tools find this Python's packages."""

import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
MODELS = os.path.join(HERE, "tests", "testdata", "onnx_models")


def pytest_configure() -> None:
    os.environ["PATH"] = os.path.dirname(sys.executable) + os.pathsep + os.environ.get("PATH", os.defpath)
    if not os.path.isdir(MODELS) or len(os.listdir(MODELS)) < 4:
        sys.path.insert(0, HERE)
        from build_models import write_models

        write_models(MODELS)
