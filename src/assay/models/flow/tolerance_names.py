"""Names that tolerances are given for: one that nothing has would be a bound that nobody keeps.

What is set for one model (a flag, its own table) has to be in it. What a project sets for all its models has to
be in one of them; an operator of ONNX that none of them uses is not an error there.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from assay.errors import UsageError, did_you_mean
from assay.models.config.settings import ModelSettings, parse_tolerance_text
from assay.models.graph.operators import is_operator
from assay.models.values.model import Outline, Tolerances

_FLAG = "--tolerance"
_ELEMENT = re.compile(r"\[\d+\]$")  # of an output that is a sequence


@dataclass(frozen=True, slots=True)
class Names:
    """What a tolerance can be for."""

    operators: frozenset[str] = frozenset()  # that layers are judged by
    tensors: frozenset[str] = frozenset()
    leaders: tuple[tuple[str, str], ...] = ()  # (Clip, Conv): the first is only judged together with the second

    def has_tensor(self, name: str) -> bool:
        return name in self.tensors or _ELEMENT.sub("", name) in self.tensors


def list_names(outline: Outline) -> Names:
    leaders = {(op, layer.ops[0]) for layer in outline.layers for op in layer.ops[1:]}
    return Names(
        frozenset(layer.ops[0] for layer in outline.layers),
        frozenset((*(name for layer in outline.layers for name in layer.outputs), *_name(outline))),
        tuple(sorted(leaders)),
    )


def _name(outline: Outline) -> Iterable[str]:
    return (spec.name for spec in outline.outputs)


def join_names(several: Iterable[Names]) -> Names:
    each = list(several)
    return Names(
        frozenset().union(*(names.operators for names in each)),
        frozenset().union(*(names.tensors for names in each)),
        tuple(sorted({pair for names in each for pair in names.leaders})),
    )


# ---------------------------------------------------------------- what is refused


def refuse_flags(texts: Sequence[str], known: Names) -> None:
    """Raises UsageError for a name in `--tolerance` that the model does not have."""
    given = Tolerances()
    for text in texts:
        given = parse_tolerance_text(text, given)
    _refuse(given.by_op, given.by_tensor, known, "the model", dict.fromkeys(("ops", "tensors"), _FLAG))


def refuse_own(settings: ModelSettings, stem: str, known: Names) -> None:
    """The same for the table of one model."""
    own = settings.models.get(stem)
    if own is None:
        return
    locations = {key: f"models.models.{stem}.{key}" for key in ("ops", "tensors")}
    _refuse(own.ops, own.tensors, known, "the model", locations)


def refuse_general(settings: ModelSettings, known: Names) -> None:
    """The same for what is set for all models. `known`: of all of them together."""
    ops = [op for op in settings.tolerances.by_op if not is_operator(op)]
    locations = {key: f"models.{key}" for key in ("ops", "tensors")}
    _refuse(ops, settings.tolerances.by_tensor, known, "any model", locations)


def has_strangers(settings: ModelSettings, known: Names) -> bool:
    """Whether something is set for all models that this one does not have: others may."""
    given = settings.tolerances
    return any(op not in known.operators for op in given.by_op) or any(not known.has_tensor(x) for x in given.by_tensor)


def find_strange_stems(settings: ModelSettings, stems: Sequence[str]) -> list[str]:
    """Tables for models that are not there, each with what to say of it."""
    strange = [stem for stem in settings.models if stem not in stems]
    return [
        f"models.models.{stem}: there is no such model; {did_you_mean(stem, stems) or 'it does nothing'}"
        for stem in strange
    ]


def _refuse(ops: Iterable[str], tensors: Iterable[str], known: Names, whose: str, locations: Mapping[str, str]) -> None:
    for op in ops:
        if op not in known.operators:
            leaders = [leader for follower, leader in known.leaders if follower == op]
            hint = f"it is judged together with {' or '.join(leaders)}: name that" if leaders else None
            message = f"{locations['ops']}: no layer of {whose} begins with {op!r}"
            raise UsageError(message, hint or did_you_mean(op, known.operators))
    for name in tensors:
        if not known.has_tensor(name):
            message = f"{locations['tensors']}: no layer of {whose} makes {name!r}"
            raise UsageError(message, did_you_mean(name, known.tensors))


# ---------------------------------------------------------------- for another model


def keep_known(texts: Sequence[str], known: Names) -> list[str]:
    """Of tolerances as flags take them, those for what is there: settings speak of other models too."""
    return [text for text in texts if _fits(text, known)]


def drop_strangers(manner: str, known: Names) -> str:
    """Flags without the tolerances for what a smaller model does not have any more: it would refuse them."""
    words = shlex.split(manner)
    kept = []
    for index, word in enumerate(words):
        texts = [words[index + 1]] if word == _FLAG else [word] if index and words[index - 1] == _FLAG else []
        if all(_fits(text, known) for text in texts):
            kept.append(word)
    return shlex.join(kept)


def _fits(text: str, known: Names) -> bool:
    given = parse_tolerance_text(text, Tolerances())
    return all(op in known.operators for op in given.by_op) and all(map(known.has_tensor, given.by_tensor))
