"""What to do about a run: every branch of the decision, and what holds for all histories."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.follow.attempts import (
    AT_ONCE_S,
    DEATH,
    GIVEN_UP,
    MAX_DEATHS,
    MAX_REFUSED,
    MAX_TAKEN_BACK,
    OUT_OF_TIME,
    Action,
    Decision,
    RetryPolicy,
    build_outcome,
    choose_beginning,
    decide,
    finished_before,
)
from assay.record.checkpoints import Checkpoint
from assay.record.run_directory import Attempt, History
from assay.values.run import Beginning, Cause, JobHandle, Liveness, Outcome, State, Stop
from assay.values.state import RETRY

COMMANDS = ("train", "test")
ALL = {"train": 0, "test": 0}


def handle(number: int = 1, executor: str = "local", skips: str | None = None) -> JobHandle:
    return JobHandle(executor, "1", "host", 1, 1, "boot", None, number, 0.0, skips=skips)


def attempt(
    number: int = 1, codes: dict[str, int] | None = None, outcome: State | None = None, **more: object
) -> Attempt:
    made = Outcome(outcome, number, codes or {}, cause="death" if outcome is State.LOST else "") if outcome else None
    fields: dict[str, object] = {"handle": handle(number), "codes": codes or {}, "outcome": made, **more}
    return Attempt(number, **fields)  # type: ignore[arg-type]


def look(
    *attempts: Attempt,
    alive: Liveness = Liveness.GONE,
    policy: RetryPolicy | None = None,
    commands: tuple[str, ...] = COMMANDS,
) -> Decision:
    return decide(History(attempts), commands, lambda _handle: alive, policy or RetryPolicy())


def never(_handle: JobHandle) -> Liveness:
    raise AssertionError("nobody needs to know whether it lives")


# ---------------------------------------------------------------- nothing, or over


@pytest.mark.parametrize(
    ("attempts", "alive", "decision"),
    [
        ([], Liveness.GONE, Decision(Action.START, State.QUEUED, 1)),
        ([attempt(codes={"train": 0}, outcome=State.DONE)], Liveness.GONE, Decision(Action.START, State.QUEUED, 2)),
        ([attempt()], Liveness.ALIVE, Decision(Action.FOLLOW, State.RUNNING, 1, handle=handle())),
        ([attempt()], Liveness.UNKNOWN, Decision(Action.FOLLOW, State.LOST, 1, handle=handle())),
    ],
    ids=["nothing yet", "done with fewer commands", "alive", "on another host"],
)
def test_what_is_next(attempts: list[Attempt], alive: Liveness, decision: Decision) -> None:
    assert look(*attempts, alive=alive) == decision


@pytest.mark.parametrize(
    ("last", "alive", "action", "state"),
    [
        (attempt(codes=ALL), Liveness.ALIVE, Action.FOLLOW, State.RUNNING),  # whatever its markers say
        (attempt(codes={"train": 1}), Liveness.ALIVE, Action.FOLLOW, State.RUNNING),
        (attempt(handle=None), Liveness.ALIVE, Action.CLEAN, State.LOST),  # no readable lease
        (attempt(codes=ALL, handle=None), Liveness.GONE, Action.CLOSE, State.DONE),  # death after every command
        (attempt(handle=handle(executor="submit")), Liveness.UNKNOWN, Action.FOLLOW, State.RUNNING),  # a farm has it
        (attempt(codes=ALL), Liveness.UNKNOWN, Action.CLOSE, State.DONE),  # the true end, on another host
        (attempt(codes={"train": 7}), Liveness.UNKNOWN, Action.CLEAN, State.FAILED),
        # before the stop
        (attempt(codes=ALL, stop=Stop("somebody", "enough")), Liveness.GONE, Action.CLOSE, State.DONE),
        (Attempt(1, handle(), outcome=Outcome(State.LOST, 1, {}, GIVEN_UP)), Liveness.GONE, Action.KEEP, State.LOST),
    ],
)
def test_action_and_state(last: Attempt, alive: Liveness, action: Action, state: State) -> None:
    decision = look(last, alive=alive)
    assert (decision.action, decision.state) == (action, state)


def test_commands_of_earlier_attempts_count() -> None:
    first = attempt(1, {"train": 0, "test": 1}, State.FAILED)
    assert look(first, attempt(2, {"test": 0}, State.DONE)).action is Action.KEEP
    assert look(attempt(codes={"train": 0}, outcome=State.DONE), commands=("train",)).action is Action.KEEP


@pytest.mark.parametrize("state", [State.DONE, State.FAILED, State.TIMEOUT, State.STOPPED, State.PRUNED])
def test_what_is_over_is_kept(state: State) -> None:
    last = attempt(codes=ALL, outcome=state)
    decision = decide(History((last,)), COMMANDS, never, RetryPolicy())
    assert decision == Decision(Action.KEEP, state, 1, last.outcome, last.handle)


# ---------------------------------------------------------------- alive, or gone


def test_what_ended_well_is_closed() -> None:
    """With the times that lease and marker have: no supervisor may have seen its end."""
    outcome = Outcome(State.DONE, 1, ALL, started_at=0.0, ended_at=7.0)
    assert look(attempt(codes=ALL, ended_at=7.0)) == Decision(Action.CLOSE, State.DONE, 1, outcome, handle())


BY_USER = Stop("somebody", "enough", "user", 5.0)
BY_RULE = Stop("somebody", "asha rung 3, 41st of 60", "rule", 5.0)


@pytest.mark.parametrize(
    ("codes", "stop", "state", "reason"),
    [
        ({"train": 0, "test": 3}, None, State.FAILED, "test ended with exit code 3"),
        ({}, None, State.LOST, DEATH),
        ({"train": 0}, None, State.LOST, DEATH),
        ({}, BY_USER, State.STOPPED, BY_USER.why),
        ({"train": 143}, BY_USER, State.STOPPED, BY_USER.why),
        ({}, BY_RULE, State.PRUNED, BY_RULE.why),
        ({"train": 0}, BY_RULE, State.PRUNED, BY_RULE.why),
        ({"train": 143}, BY_RULE, State.PRUNED, BY_RULE.why),
    ],
)
def test_what_ended_otherwise_is_cleaned_up(
    codes: dict[str, int], stop: Stop | None, state: State, reason: str
) -> None:
    decision = look(attempt(codes=codes, stop=stop))
    assert (decision.action, decision.state) == (Action.CLEAN, state)
    assert decision.outcome is not None
    assert (decision.outcome.reason, decision.outcome.exit_code) == (reason, max(codes.values(), default=None))


# ---------------------------------------------------------------- other hosts


def test_only_retry_lost_gives_up_another_host() -> None:
    force = RetryPolicy(again=frozenset(State), base=1)
    assert look(attempt(), alive=Liveness.UNKNOWN, policy=force).action is Action.FOLLOW
    retry = RetryPolicy(again=frozenset({State.LOST}), base=1, abandons=True)
    given_up = look(attempt(), alive=Liveness.UNKNOWN, policy=retry)
    assert (given_up.action, given_up.state) == (Action.CLOSE, State.LOST)
    assert given_up.outcome is not None
    assert given_up.outcome.reason == GIVEN_UP
    closed = attempt(outcome=State.LOST)
    assert look(closed, policy=retry) == Decision(Action.START, State.QUEUED, 2)
    assert look(closed, attempt(2), alive=Liveness.UNKNOWN, policy=retry).action is Action.FOLLOW


# ---------------------------------------------------------------- stops


def test_what_a_rule_ended_may_have_finished_before_or_still_run() -> None:
    assert look(attempt(codes=ALL, stop=BY_RULE)).state is State.DONE
    assert look(attempt(stop=BY_RULE), alive=Liveness.ALIVE).action is Action.FOLLOW


@pytest.mark.parametrize("name", ["failed", "lost", "stopped"])
def test_only_a_forced_repeat_begins_a_pruned_run_again(name: str) -> None:
    last = attempt(outcome=State.PRUNED, stop=Stop("somebody", "why", "rule"))
    policy = RetryPolicy(retries=5, again=frozenset(RETRY[name]), base=1).begin(History((last,)))
    assert look(last, policy=policy).action is Action.KEEP
    assert look(last, policy=replace(policy, again=frozenset(State))).action is Action.START


@pytest.mark.parametrize(("kind", "goes_on"), [("interrupt", True), ("user", False), ("early", False)])
@pytest.mark.parametrize("at", [5.0, 4e9])
def test_only_an_interrupt_that_was_there_at_the_start_is_continued(kind: str, at: float, goes_on: bool) -> None:
    """Whatever the clock showed then: it may have gone back since."""
    stopped = attempt(outcome=State.STOPPED, stop=Stop("somebody", "why", kind, at))  # type: ignore[arg-type]
    before = RetryPolicy().begin(History((stopped,)))
    assert look(stopped, policy=before).action is (Action.START if goes_on else Action.KEEP)
    for earlier in ((), (attempt(),)):  # nothing was there yet, or it still ran
        assert look(stopped, policy=RetryPolicy().begin(History(earlier))).action is Action.KEEP


def test_the_next_attempt_is_not_continued_because_the_first_was() -> None:
    first = attempt(outcome=State.STOPPED, stop=Stop("somebody", "why", "interrupt", 5.0))
    second = attempt(2, outcome=State.STOPPED, stop=Stop("another", "why", "interrupt", 4.0))
    assert look(first, second, policy=RetryPolicy().begin(History((first,)))).action is Action.KEEP


# ---------------------------------------------------------------- again


def failures(count: int, state: State = State.FAILED) -> list[Attempt]:
    return [attempt(n, {"train": 1}, state) for n in range(1, count + 1)]


@pytest.mark.parametrize("state", [State.FAILED, State.TIMEOUT])
@pytest.mark.parametrize("retries", [0, 1, 3])
def test_retries_are_counted_exactly(retries: int, state: State) -> None:
    policy = RetryPolicy(retries=retries)
    starts = [look(*failures(count, state), policy=policy).action is Action.START for count in range(1, retries + 3)]
    assert starts == [True] * retries + [False] * 2


def test_retry_failed_counts_from_zero() -> None:
    policy = RetryPolicy(retries=1, again=frozenset({State.FAILED}), base=2)
    actions = [look(*failures(count), policy=policy).action for count in (2, 3, 4)]
    assert actions == [Action.START, Action.START, Action.KEEP]


@pytest.mark.parametrize("state", [state for state in State if state.is_over])
def test_each_state_can_be_asked_for_again(state: State) -> None:
    policy = RetryPolicy(again=frozenset({state}), base=1)
    over = Attempt(1, handle(), codes=ALL, outcome=Outcome(state, 1, ALL, "somehow"))
    assert look(over, policy=policy) == Decision(Action.START, State.QUEUED, 2)
    again = Attempt(2, handle(2), codes=ALL, outcome=Outcome(state, 2, ALL, "somehow"))
    assert look(over, again, policy=policy).action is Action.KEEP


@pytest.mark.parametrize(("cause", "limit"), [("death", MAX_DEATHS), ("taken back", MAX_TAKEN_BACK)])
def test_the_cause_decides_and_not_how_it_is_explained(cause: Cause, limit: int) -> None:
    outcomes = [Outcome(State.LOST, n, {}, f"job {n} says why", cause=cause) for n in range(1, limit + 2)]
    ended = [Attempt(outcome.attempt, handle(outcome.attempt), outcome=outcome) for outcome in outcomes]
    assert [look(*ended[:count]).action for count in (1, limit - 1, limit)] == [Action.START, Action.START, Action.KEEP]
    retry = RetryPolicy(again=frozenset({State.LOST}), base=limit)
    actions = [look(*ended[:count], policy=retry).action for count in (limit, limit + 1)]
    assert actions == [Action.START, Action.KEEP], "--retry lost gives it one more attempt, not as many again"


def test_deaths_count_only_in_a_row() -> None:
    four = [attempt(n, outcome=State.LOST) for n in range(1, 5)]
    between = attempt(5, {"train": 1}, State.FAILED)
    later = [attempt(n, outcome=State.LOST) for n in range(6, 10)]
    assert look(*four, between, *later).action is Action.START


# ---------------------------------------------------------------- from a checkpoint


def resumed(number: int, checkpoint: str = "", newest_ns: int = 0, **more: object) -> Attempt:
    began = replace(handle(number), begins=Beginning(("*.pt",), checkpoint, newest_ns))
    return replace(attempt(number), handle=began, **more)  # type: ignore[arg-type]


def end(number: int, state: State, cause: Cause = "", checkpoint: str = "", took_s: float = 1.0) -> dict[str, Outcome]:
    return {"outcome": Outcome(state, number, {}, "", 0.0, took_s, checkpoint=checkpoint, cause=cause)}


WARNED: dict[str, object] = {"is_warned": True, "late": frozenset({"train"})}


@pytest.mark.parametrize("code", [0, 5, 138])
def test_what_ended_after_a_warning_is_continued_where_it_got_further(code: int) -> None:
    last = resumed(1, codes={"train": code}, **WARNED)
    found = decide(History((last,)), ("train",), lambda _: Liveness.GONE, RetryPolicy(), lambda _: "step-9.pt")
    assert found.outcome is not None
    assert (found.state, found.outcome.reason) == (State.STOPPED, f"{OUT_OF_TIME}; goes on from step 9")
    assert look(replace(last, outcome=found.outcome), commands=("train",)) == Decision(Action.START, State.QUEUED, 2)
    doubted = replace(last, contradictory=frozenset({"train"}))
    found = decide(History((doubted,)), ("train",), lambda _: Liveness.GONE, RetryPolicy(), lambda _: "step-9.pt")
    assert found.state is State.FAILED, "markers that contradict each other are never continued"
    failed = look(last, commands=("train",)).outcome
    assert failed is not None
    assert failed.state is State.FAILED
    assert failed.reason.startswith(f"train ended with exit code {code}")
    assert failed.reason.endswith("after the warning of its time limit, without a newer checkpoint than it began with")


def test_a_time_limit_without_a_newer_checkpoint_is_one() -> None:
    last = resumed(1, codes={"train": 124}, timeouts=frozenset({"train"}), **WARNED)
    outcome = look(last, commands=("train",)).outcome
    assert outcome is not None
    assert (outcome.state, outcome.checkpoint) == (State.TIMEOUT, "")


def test_the_study_s_own_limit_is_final() -> None:
    last = resumed(1, codes={"train": 124}, timeouts=frozenset({"train"}))
    found = decide(History((last,)), ("train",), lambda _: Liveness.GONE, RetryPolicy(), lambda _: "step-9.pt")
    assert found.state is State.TIMEOUT
    assert look(replace(last, outcome=found.outcome), commands=("train",)).action is Action.KEEP


def test_what_ended_before_the_warning_is_finished_and_what_ended_after_it_is_not() -> None:
    last = attempt(1, ALL, is_warned=True, late=frozenset({"test"}))
    assert History((last,)).finished_commands() == {"train"}


def test_who_stops_it_after_the_warning_has_stopped_it() -> None:
    outcome = look(resumed(1, codes={"train": 0}, stop=Stop("x", "enough"), **WARNED), commands=("train",)).outcome
    assert outcome is not None
    assert (outcome.state, outcome.reason) == (State.STOPPED, "enough")


def test_deaths_that_got_further_are_not_counted() -> None:
    deaths = [resumed(n, **end(n, State.LOST, "death", f"step-{n}.pt")) for n in range(1, 3 * MAX_DEATHS)]
    assert look(*deaths).action is Action.START
    stuck = [resumed(n, **end(n, State.LOST, "death")) for n in range(len(deaths) + 1, len(deaths) + MAX_DEATHS)]
    assert [look(*deaths, *stuck[:count]).action for count in (3, 4)] == [Action.START, Action.KEEP]


def test_a_checkpoint_that_is_refused_costs_no_retry() -> None:
    lost = resumed(1, **end(1, State.LOST, "death", "step-9.pt"))
    refused = [resumed(n, f"step-{9 - n}.pt", 100, **end(n, State.FAILED)) for n in range(2, MAX_REFUSED + 3)]
    actions = [look(lost, *refused[:count]).action for count in range(1, MAX_REFUSED + 2)]
    assert actions == [Action.START] * MAX_REFUSED + [Action.KEEP]


@pytest.mark.parametrize(
    "last",
    [
        resumed(2, "step-9.pt", 100, **end(2, State.FAILED, took_s=AT_ONCE_S)),
        resumed(2, "step-9.pt", 100, **end(2, State.FAILED, checkpoint="step-10.pt")),
        resumed(2, "step-9.pt", 100, **end(2, State.TIMEOUT)),
        resumed(2, "step-9.pt", 100, is_warned=True, **end(2, State.FAILED)),
        resumed(2, "", 100, **end(2, State.FAILED)),
    ],
)
def test_a_failure_that_is_not_the_checkpoint_s(last: Attempt) -> None:
    assert look(resumed(1, **end(1, State.LOST, "death", "step-9.pt")), last).action is Action.KEEP


FOUND = [Checkpoint(f"step-{step}.pt", step) for step in (30, 20, 10)]


@pytest.mark.parametrize(
    ("earlier", "checkpoint"),
    [
        ([resumed(1)], "step-30.pt"),
        ([attempt(1)], "step-30.pt"),  # of a version that noted nothing
        ([resumed(1), resumed(2, "step-30.pt", 30, **end(2, State.FAILED))], "step-20.pt"),
        ([resumed(1), resumed(2, "step-30.pt", 25, **end(2, State.FAILED))], "step-30.pt"),  # it was written again
        ([resumed(1), resumed(2, "", 20)], "step-30.pt"),  # attempt 2 started over: what was there then is not its own
        ([resumed(1), resumed(2, "", 30)], ""),
    ],
)
def test_what_the_next_attempt_begins_with(earlier: list[Attempt], checkpoint: str) -> None:
    found = choose_beginning(("*.pt",), FOUND, earlier, starts_over=False)
    assert found == Beginning(("*.pt",), checkpoint, 30)
    assert choose_beginning(("*.pt",), FOUND, earlier, starts_over=True) == Beginning(("*.pt",), "", 30)
    assert choose_beginning(("*.pt",), [], earlier, starts_over=False) == Beginning(("*.pt",))


# ---------------------------------------------------------------- what counts as finished


def test_a_repeat_does_not_lean_on_what_it_repeats() -> None:
    """`--force` runs everything again; killed, it must not pass for done because the first attempt was."""
    first = attempt(1, ALL, State.DONE)
    repeat = attempt(2, handle=handle(2, skips=""))
    assert look(first, repeat).state is State.LOST
    assert finished_before(History((first, repeat))) == set()


def test_an_attempt_leans_on_what_it_left_out() -> None:
    first = attempt(1, {"train": 0, "test": 1}, State.FAILED)
    second = attempt(2, {"test": 0}, handle=handle(2, skips=":train:"))
    assert finished_before(History((first, second))) == {"train"}
    assert look(first, second).state is State.DONE


def test_where_no_lease_names_the_skipped_commands_earlier_attempts_do() -> None:
    first = attempt(1, {"train": 0}, State.FAILED)
    assert finished_before(History((first, attempt(2, handle=None)))) == {"train"}


# ---------------------------------------------------------------- words


@pytest.mark.parametrize(
    ("code", "late", "state", "reason"),
    [
        (1, (), State.FAILED, "train ended with exit code 1"),
        (137, (), State.FAILED, "train ended with exit code 137 (SIGKILL)"),
        (139, (), State.FAILED, "train ended with exit code 139 (SIGSEGV)"),
        (255, (), State.FAILED, "train ended with exit code 255"),
        (124, (), State.FAILED, "train ended with exit code 124"),
        (124, ("train",), State.TIMEOUT, "train ran into its time limit"),
    ],
)
def test_the_reason_of_a_failure(code: int, late: tuple[str, ...], state: State, reason: str) -> None:
    outcome = build_outcome(attempt(codes={"train": code}, timeouts=frozenset(late)), COMMANDS, set())
    assert (outcome.state, outcome.reason) == (state, reason)


# ---------------------------------------------------------------- for all histories

codes = st.dictionaries(st.sampled_from(COMMANDS), st.integers(0, 255))
stops = st.none() | st.builds(
    Stop, st.just("x"), st.just("y"), st.sampled_from(["user", "interrupt", "early"]), st.floats(0, 10)
)


@st.composite
def histories(draw: st.DrawFn) -> History:
    count = draw(st.integers(0, 7))
    made = []
    for number in range(1, count + 1):
        said = draw(codes)
        over = number < count or draw(st.booleans())
        one = Attempt(number, draw(st.none() | st.just(handle(number))), stop=draw(stops), codes=said)
        outcome = build_outcome(one, COMMANDS, set()) if over else None
        made.append(Attempt(number, one.handle, stop=one.stop, codes=said, outcome=outcome))
    return History(tuple(made))


policies = st.builds(
    RetryPolicy,
    st.integers(0, 3),
    st.frozensets(st.sampled_from(State)),
    st.integers(0, 7),
    st.floats(0, 10),
    st.booleans(),
)


@given(histories(), policies, st.sampled_from(Liveness))
def test_an_attempt_number_is_never_used_twice(history: History, policy: RetryPolicy, alive: Liveness) -> None:
    decision = decide(history, COMMANDS, lambda _handle: alive, policy)
    used = {each.number for each in history.attempts}
    if decision.action is Action.START:
        assert decision.attempt == max(used, default=0) + 1
        assert history.last is None or history.last.outcome is not None
    else:
        assert decision.attempt == max(used)


@given(histories(), policies)
def test_what_lives_is_never_closed(history: History, policy: RetryPolicy) -> None:
    decision = decide(history, COMMANDS, lambda _handle: Liveness.ALIVE, policy)
    last = history.last
    if last is not None and last.outcome is None and last.handle is not None:
        assert decision.action is Action.FOLLOW


@given(histories(), policies, st.sampled_from(Liveness))
def test_a_close_has_an_outcome_that_then_stands(history: History, policy: RetryPolicy, alive: Liveness) -> None:
    """Deciding again after the outcome is written never closes again: a supervisor cannot turn in a circle."""
    decision = decide(history, COMMANDS, lambda _handle: alive, policy)
    if decision.action not in (Action.CLOSE, Action.CLEAN):
        return
    assert decision.outcome is not None
    last = history.attempts[-1]
    closed = Attempt(last.number, last.handle, stop=last.stop, codes=last.codes, outcome=decision.outcome)
    after = decide(History((*history.attempts[:-1], closed)), COMMANDS, never, policy)
    assert after.action in (Action.START, Action.KEEP)


@given(histories(), st.integers(0, 3))
def test_by_itself_a_run_comes_to_an_end(history: History, retries: int) -> None:
    """However an attempt ends, the number of attempts that follow is bounded."""
    policy = RetryPolicy(retries=retries)
    ended = list(history.attempts)
    for _ in range(8 + retries + MAX_DEATHS):
        decision = decide(History(tuple(ended)), COMMANDS, lambda _handle: Liveness.GONE, policy)
        if decision.action is Action.KEEP:
            return
        if decision.action is Action.START:
            ended.append(attempt(decision.attempt, {"train": 1}, State.FAILED))
        else:
            last = ended[-1]
            ended[-1] = Attempt(last.number, last.handle, stop=last.stop, codes=last.codes, outcome=decision.outcome)
    raise AssertionError("it never ends")
