"""`assay trace diff`."""

from __future__ import annotations

from assay.errors import UsageError
from assay.show.console import Console
from assay.values.options import Request, argument, json_option, option, root_option


class DiffRequest(Request):
    a: str = argument("A")
    b: str | None = argument("[B]", required=False)
    names: str | None = option(
        "--names", metavar="FILE", help="Lines `NAME-IN-A = NAME-IN-B`; * stands for the same text in both."
    )
    html: str | None = option("--html", metavar="FILE", help="Write the report as one HTML page; - for stdout.")
    root: str | None = root_option()
    as_json: bool = json_option("Print verdict, first, coverage and all errors as JSON.")


def diff(request: DiffRequest, console: Console) -> int:
    """Say where the traces A and B begin to differ; of A alone, where it stops being finite.

    A and B are runs, or folders that `assay trace run -o` wrote. The answer is the first module whose inputs agree and
    whose output does not, or the flag, optimiser group, weight or input that began it.

    Exit code 0: equal bit for bit, or within the noise that was recorded with --noise. 1: beyond it. 3: without noise
    not equal (CHANGED), or undecided (INCONCLUSIVE).
    """
    from assay.show.report_files import check_targets, write_text
    from assay.trace.comparing import check_finite, compare, load_recording
    from assay.trace.report import build_diff_document, build_finite_document

    is_on_stdout = check_targets(request.html, as_json=request.as_json)
    a = load_recording(request.a, request.root)
    if request.b is None:
        if request.names:
            raise UsageError("--names is for two traces", f"name the second one: assay trace diff {request.a} B")
        verdict, first, side = check_finite(a)
        document = build_finite_document(a, verdict, first, side)
    else:
        b = load_recording(request.b, request.root)
        found, *sides = compare(a, b, request.names)
        verdict, document = found.verdict, build_diff_document(a, b, found, *sides)
    if request.html:
        from assay.show.html import render_html

        write_text(request.html, render_html(document))
    if not is_on_stdout:
        console.write_document(document, as_json=request.as_json)
    return int(verdict.kind.exit_code)
