"""LangGraph: its conformance suite for savers through the pairing, and graphs that travel with a machine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypedDict

import pytest
from langgraph.checkpoint.base import CheckpointTuple
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.conformance.capabilities import DetectedCapabilities
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt

import waypoint
from waypoint import errors
from waypoint.adapters.langgraph import POINT, SESSION, WaypointSaver
from waypoint.home import Home

TESTS = 81
"""How many tests the suite has."""


class FullSaver(InMemorySaver):
    """LangGraph's saver in memory lacks what a saver need not have."""

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        async for saved in self.alist(None):
            if saved.metadata.get("run_id") in run_ids:
                self._delete(saved)

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        for kept in (self.blobs, self.writes):
            kept.update(
                {(target_thread_id, *key[1:]): kept[key] for key in [*kept] if key[0] == source_thread_id}
            )
        for namespace, saved in self.storage[source_thread_id].items():
            self.storage[target_thread_id][namespace].update(saved)

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        for thread_id in thread_ids:
            if strategy == "delete":
                self.delete_thread(thread_id)
            for namespace in [*self.storage[thread_id]]:
                config = {"configurable": {"thread_id": thread_id, "checkpoint_ns": namespace}}
                for saved in [*self.list(config)][1:]:
                    self._delete(saved)

    def _delete(self, saved: CheckpointTuple) -> None:
        place = saved.config["configurable"]
        thread_id, namespace, checkpoint_id = (
            place[name] for name in ("thread_id", "checkpoint_ns", "checkpoint_id")
        )
        del self.storage[thread_id][namespace][checkpoint_id]
        self.writes.pop((thread_id, namespace, checkpoint_id), None)


@pytest.fixture(scope="module")
def seed(home: Home, loop_threads: None) -> Iterator[waypoint.Checkpoint]:
    """A point of a session in which nothing was done: forks of it are there soonest."""
    with waypoint.session(temporary=True, net="none", actor="agent") as session:
        yield session.checkpoint("nothing was done yet")


@pytest.fixture
def session(seed: waypoint.Checkpoint) -> Iterator[waypoint.Session]:
    (fork,) = seed.fork(actor="agent")
    yield fork
    fork.remove()


async def test_the_conformance_suite_of_savers_passes_through_the_pairing(
    session: waypoint.Session,
) -> None:
    @checkpointer_test(name="paired")
    async def saver() -> Any:
        yield WaypointSaver(FullSaver(), lambda _: session)

    report = await validate(saver)
    failures = [failure for result in report.results.values() for failure in result.failures or ()]
    assert failures == []
    assert sum(result.tests_passed for result in report.results.values()) == TESTS


def test_the_pairing_claims_what_the_saver_can_do(session: waypoint.Session) -> None:
    for inner in (InMemorySaver(), FullSaver()):
        paired = WaypointSaver(inner, session)
        assert isinstance(paired, WaypointSaver)
        found, expected = (DetectedCapabilities.from_instance(one).detected for one in (paired, inner))
        assert found == expected


class State(TypedDict, total=False):
    plan: str
    seen: list[str]


def graph_of(saver: WaypointSaver) -> Any:
    """Sets a machine up, works on it as planned, looks what came of it."""

    def run(command: str, thread: str = "1") -> str:
        return saver.session_of(thread).run(command, timeout=20).output

    def prepare(state: State) -> State:
        run("mkdir -p /opt/app; cd /opt/app; echo x > data; step=1; sleep 1000 & echo $! > pid")
        return {"plan": "destroy", "seen": []}

    def work(state: State) -> State:
        if state["plan"] == "destroy":
            run("kill $(cat pid); rm -rf /opt/app /etc/apt; step=2")
        return state

    def look(state: State) -> State:
        command = "kill -0 $(cat /opt/app/pid) && cat /opt/app/data; echo $step; ls -d /etc/apt"
        return {"seen": [*state["seen"], run(command)]}

    def agree(state: State) -> State:
        return {"plan": interrupt("which plan?")} if state["plan"] == "ask" else state

    graph = StateGraph(State)
    names = ("prepare", "agree", "work", "look")
    for name, node in zip(names, (prepare, agree, work, look), strict=True):
        graph.add_node(name, node)
    for before, after in zip((START, *names), (*names, END), strict=True):
        graph.add_edge(before, after)
    return graph.compile(checkpointer=saver)


HERE: Any = {"configurable": {"thread_id": "1"}}
WHOLE = "x\n1\n/etc/apt\n"


def before(graph: Any, node: str) -> Any:
    """The last checkpoint at which a node was next."""
    return next(saved for saved in graph.get_state_history(HERE) if saved.next == (node,))


def test_a_graph_breaks_its_machine_goes_back_with_it_and_succeeds(session: waypoint.Session) -> None:
    saver = WaypointSaver(InMemorySaver(), session)
    graph = graph_of(saver)
    (broken,) = graph.invoke({"plan": ""}, HERE, durability="sync")["seen"]
    assert "No such file" in broken
    prepared = before(graph, "agree")
    assert prepared.metadata[SESSION] == session.name
    points = [saved.metadata[POINT] for saved in graph.get_state_history(HERE)]
    # Newest first: looking changed nothing, nor did agreeing, nor the input.
    assert points[0] == points[1] != points[2] == points[3] == prepared.metadata[POINT] != points[4]
    assert points[4] == points[5]
    # To look at an older checkpoint moves nothing.
    assert graph.get_state(prepared.config).values["plan"] == "destroy"
    assert session.run("echo $step").output == "2\n"
    # Nor does editing one. A run from there does: the machine goes back with the graph.
    edited = graph.update_state(prepared.config, {"plan": "keep"})
    assert session.run("echo $step").output == "2\n"
    assert graph.get_state(edited).metadata[POINT] == prepared.metadata[POINT]
    assert graph.invoke(None, edited, durability="sync")["seen"] == [WHOLE]
    # The same with the input as it was: it breaks the machine again.
    (again,) = graph.invoke(None, prepared.config, durability="sync")["seen"]
    assert "No such file" in again


def test_time_travel_can_go_on_in_a_fork(session: waypoint.Session) -> None:
    saver = WaypointSaver(InMemorySaver(), session, travel="fork")
    graph = graph_of(saver)
    graph.invoke({"plan": ""}, HERE, durability="sync")
    edited = graph.update_state(before(graph, "work").config, {"plan": "keep"})
    assert graph.invoke(None, edited, durability="sync")["seen"] == [WHOLE]
    fork = saver.session_of("1")
    assert fork.name != session.name
    assert session.run("echo $step").output == "2\n", "the session it came from is as it was"
    assert graph.get_state(HERE).metadata[SESSION] == fork.name
    # From there to a point of the session that it grew from: in a third one.
    (broken,) = graph.invoke(None, before(graph, "agree").config, durability="sync")["seen"]
    assert "No such file" in broken
    third = saver.session_of("1")
    assert (fork.run("echo $step").output, third.run("echo $step").output) == ("1\n", "2\n")
    third.remove()
    fork.remove()


async def test_an_interrupted_run_goes_on_where_its_machine_is(session: waypoint.Session) -> None:
    saver = WaypointSaver(InMemorySaver(), session)
    graph = graph_of(saver)
    await graph.ainvoke({"plan": ""}, HERE, durability="sync", interrupt_before=["agree"])
    await graph.aupdate_state(HERE, {"plan": "ask"})
    stopped = await graph.ainvoke(None, HERE, durability="sync")
    assert stopped["__interrupt__"][0].value == "which plan?"
    session.run("echo by hand > /opt/app/data")
    done = await graph.ainvoke(Command(resume="keep"), HERE, durability="sync")
    assert done["seen"] == [WHOLE.replace("x", "by hand")]


def test_what_cannot_be_paired_is_refused(session: waypoint.Session) -> None:
    inner = InMemorySaver()
    graph = graph_of(WaypointSaver(inner, session))
    with pytest.raises(errors.UsageError, match="durability='async'") as refused:
        graph.invoke({"plan": ""}, HERE)
    assert 'durability="sync"' in refused.value.hint
    graph.invoke({"plan": ""}, HERE, durability="exit", interrupt_after=["prepare"])
    with pytest.raises(errors.UsageError, match="'2' cannot use the session of thread '1'"):
        graph.invoke({"plan": ""}, {"configurable": {"thread_id": "2"}}, durability="sync")
    plain = StateGraph(State).add_node("agree", lambda state: state).add_edge(START, "agree")
    alone = plain.compile(checkpointer=inner)
    alone.invoke({"plan": ""}, {"configurable": {"thread_id": "3"}})
    unpaired = alone.get_state({"configurable": {"thread_id": "3"}}).config
    other = graph_of(WaypointSaver(inner, session))
    with pytest.raises(errors.NotFound, match="has no point of the machine"):
        other.invoke(None, unpaired, durability="sync")
