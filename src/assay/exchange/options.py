"""The option `assay run --notify`."""

from __future__ import annotations

from assay.values.options import Request, option


def _check(receivers: tuple[str, ...], flag: str) -> tuple[str, ...]:
    from assay.exchange.notify import check_receivers

    check_receivers(receivers, flag)
    return receivers


class NotifyOptions(Request):
    notify: tuple[str, ...] = option(
        "--notify",
        multiple=True,
        metavar="WHERE",
        parse=_check,
        help="Report the end, the first failure and a new best run to a shell command or an http address; or `none`.",
    )
