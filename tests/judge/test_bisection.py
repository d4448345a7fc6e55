from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from assay.judge.bisection import CommitTrial, Culprit, NextTry, Stuck, TrialHistory, form_opinion, next_step


def chain(count):
    names = [f"c{number}" for number in range(count + 1)]
    return {name: tuple(names[max(0, index - 1) : index]) for index, name in enumerate(names)}


def history(parents, trials=(), **options):
    names = list(parents)
    return TrialHistory(parents, names[0], names[-1], tuple(CommitTrial(*trial) for trial in trials), **options)


def search(parents, judge, **options):
    """Run the search to its end with `judge(commit)` as the outcome; the last step and all trials."""
    trials = []
    for _ in range(500):
        step = next_step(history(parents, trials, **options))
        if not isinstance(step, NextTry):
            return step, trials
        trials.append((step.commit, judge(step.commit)))
    raise AssertionError("it never ends")


def test_both_ends_are_tried_first():
    parents = chain(8)
    assert next_step(history(parents)) == NextTry("c0", "good end", 9)
    assert next_step(history(parents, [("c0", "good")])) == NextTry("c8", "bad end", 9)
    assert next_step(history(parents, [("c0", "open")])) == NextTry("c0", "good end", 9), "it is tried again"


def test_ends_that_do_not_fit_stop_the_search():
    for trials, words in (
        ([("c0", "bad")], "do not differ: both are bad"),
        ([("c0", "good"), ("c8", "good")], "do not differ: both are good"),
        ([("c0", "skip")], "the good end cannot be judged"),
        ([("c0", "good"), ("c8", "skip")], "the bad end cannot be judged"),
        ([("c0", "open")] * 3, "the good end cannot be judged"),
    ):
        step = next_step(history(chain(8), trials))
        assert isinstance(step, Stuck)
        assert words in step.reason


def judge_from(culprit, **others):
    """Bad from this number on; `others` are outcomes by commit."""
    return lambda commit: others.get(commit, "bad" if int(commit[1:]) >= culprit else "good")


def test_every_culprit_among_eight_is_found_in_three_trials_after_the_ends():
    for culprit in range(1, 9):
        step, trials = search(chain(8), judge_from(culprit))
        assert step == Culprit((f"c{culprit}",))
        assert len(trials) <= 2 + 3
    step, trials = search(chain(1), judge_from(1))
    assert (step.culprit, len(trials)) == ("c1", 2), "neighbours need no search"


def test_commits_that_do_not_build_or_stay_inconclusive_are_passed_over():
    step, trials = search(chain(8), judge_from(6, c4="skip"))
    assert step == Culprit(("c6",))
    assert [commit for commit, outcome in trials if outcome == "skip"] == ["c4"], "it is tried once"
    step, _ = search(chain(8), judge_from(6, c3="skip", c4="skip", c5="skip"))
    assert (step, step.culprit) == (Culprit(("c3", "c4", "c5", "c6")), None)
    step, trials = search(chain(8), judge_from(4, c4="open"), patience=3)
    assert trials.count(("c4", "open")) == 3
    assert step == Culprit(("c4", "c5"))


def test_a_culprit_on_a_merged_branch_is_found_there():
    """c0 - a1 - a2 - a3 -------- m - c5, and c0 - b1 - b2 - b3 joins at m."""
    pairs = ("a1 c0", "a2 a1", "a3 a2", "b1 c0", "b2 b1", "b3 b2", "m a3 b3", "c5 m")
    parents = {"c0": (), **{each.split()[0]: tuple(each.split()[1:]) for each in pairs}}
    infected = {"b2", "b3", "m", "c5"}
    step, _ = search(parents, lambda commit: "bad" if commit in infected else "good")
    assert step == Culprit(("b2",))


@given(st.data())
def test_in_any_history_the_one_culprit_is_found(data):
    """A random graph; a commit is bad when the culprit is among its ancestors."""
    size = data.draw(st.integers(2, 40))
    rng = random.Random(data.draw(st.integers(0, 10**6)))
    names = [f"c{number}" for number in range(size)]
    parents = {"c0": ()}
    for number in range(1, size):
        count = 2 if number > 1 and rng.random() < 0.3 else 1
        parents[names[number]] = tuple(rng.sample(names[max(0, number - 5) : number], min(count, number)))
    reach = {}
    for name in names:
        reach[name] = {name}.union(*(reach[parent] for parent in parents[name]))
    # what is not an ancestor of the bad end is not in the range that git lists
    parents = {name: parents[name] for name in names if name in reach[names[-1]]}
    culprit = rng.choice([name for name in parents if name != "c0"])
    step, trials = search(parents, lambda commit: "bad" if culprit in reach[commit] else "good")
    assert step == Culprit((culprit,))
    assert len({commit for commit, _ in trials}) == len(trials), "nothing is tried twice"


def test_where_there_is_noise_the_accused_and_its_parent_are_tried_twice():
    step, trials = search(chain(8), judge_from(5), votes=2)
    assert step == Culprit(("c5",))
    assert trials.count(("c5", "bad")) == 2
    assert trials.count(("c4", "good")) == 2


def test_one_wrong_verdict_is_outvoted():
    """The first trial of c4 lies; the confirmation of the false culprit brings the truth to light."""
    seen = []

    def judge(commit):
        number = int(commit[1:])
        seen.append(commit)
        lies = commit == "c4" and seen.count("c4") == 1
        return "bad" if (number >= 6) != lies else "good"

    step, trials = search(chain(8), judge, votes=2)
    assert step == Culprit(("c6",))
    assert ("c4", "bad") in trials
    assert ("c4", "good") in trials


def test_opinions():
    def opinion(*outcomes):
        return form_opinion(history(chain(2), [("c1", outcome) for outcome in outcomes]), "c1")

    known = {(): "unknown", ("good",): "good", ("good", "bad"): "open", ("good", "bad", "bad"): "bad"}
    known |= {("open",): "open", ("open",) * 3: "skip", ("open", "bad"): "bad", ("skip",): "skip"}
    assert {outcomes: opinion(*outcomes) for outcomes in known} == known
    assert NextTry("c", "halve", 7).reason == "7 suspects"
    said = {NextTry("c", why).reason for why in ("good end", "bad end", "confirm")}
    assert len(said) == 3
    assert "0 suspects" not in said
