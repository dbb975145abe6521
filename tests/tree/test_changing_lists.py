"""Loops of the engine core whose body can take pages, a turn or a session away. Each says in its
docstring what may change meanwhile, and a test changes exactly that.

A loop over a copy, or one that takes each element out of its queue first, needs neither.
"""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
CORE = ROOT / "engine/core"
TAKES_AWAY = {"close", "discard", "end_turn", "evict", "release", "retract", "revoke", "spill"}
NOT_FOLLOWED = {"add", "append", "clear", "extend", "find_continuation", "get", "pop", "popleft"}
"""Names of methods of containers, and of one that looks up ids in a tree and leaves it as it is."""
COPIES = {"dict", "list", "range", "sorted", "tuple"}
TAKES_OUT = {"heappop", "pop", "popleft"}

ONE_ROW = (
    "engine/core/schedule/test_one_row.py::test_turn_retracted_while_a_step_is_planned_has_one_row"
)
COMPONENTS = "engine/core/test_components.py"
CHANGES = "engine/core/test_changes_in_a_step.py"
TESTS = {
    "EngineLoop.apply_result": f"{CHANGES}::test_rows_of_one_step_end_close_and_fork_sessions",
    "EngineLoop._roll_back": "engine/core/test_failed_steps.py"
    "::test_kv_of_the_step_after_a_failed_one_is_discarded",
    "EngineLoop._is_interrupted": "engine/core/test_interrupted_prefill.py"
    "::test_short_turn_does_not_wait_for_the_end_of_a_prefill_step",
    "EngineLoop.run": f"{CHANGES}::test_session_expires_while_another_one_runs",
    "HostTier._make_room": "engine/core/cache/test_session_aware_cache.py"
    "::test_host_tier_evicts_its_oldest_pages_first",
    "HostTier._marks_with_room": f"{COMPONENTS}"
    "::test_marks_inside_an_answer_leave_the_host_before_any_history",
    "Packer.add_live_rows": ONE_ROW,
    "Packer.add_row": ONE_ROW,
    "Scheduler._add_chunks": ONE_ROW,
    "Scheduler._admit": ONE_ROW,
    "Scheduler._admit_in_order": ONE_ROW,
    "Scheduler._plan_suspects": "engine/core/test_failed_rows.py"
    "::test_fault_isolation_terminates_in_a_small_page_pool",
    "Scheduler._plan_with_prefill": ONE_ROW,
    "SessionAwareCache._make_room": f"{CHANGES}::test_evicted_lease_leaves_its_shared_pages",
    "SessionAwareCache._make_room_in": f"{COMPONENTS}"
    "::test_session_under_pressure_loses_the_start_of_its_answer_last",
    "SessionAwareCache._make_shared_room_at": f"{COMPONENTS}"
    "::test_barge_in_on_a_spilled_session_owes_at_most_half_the_answer",
    "SessionAwareCache._marks_to_recall": "engine/core/cache/test_session_aware_cache.py"
    "::test_pages_being_recalled_are_not_evicted_by_the_spill_they_cause",
    "SessionAwareCache.reset": f"{CHANGES}::test_reset_discards_shared_and_spilled_kv",
    "WindowPages._advance": f"{COMPONENTS}"
    "::test_barge_in_on_windows_owes_nothing_within_the_answer",
}
"""The test that changes what may change during the loops of each function."""


def calls(nodes: list[ast.stmt]) -> set[str]:
    """Return the names of all functions and methods called in `nodes`."""
    found: set[str] = set()
    for call in (x for node in nodes for x in ast.walk(node) if isinstance(x, ast.Call)):
        if isinstance(call.func, ast.Attribute):
            found.add(call.func.attr)
        elif isinstance(call.func, ast.Name):
            found.add(call.func.id)
    return found


def functions(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Yield each function of a module with its name, and that of its class."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, node
        elif isinstance(node, ast.ClassDef):
            for child in node.body:
                if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                    yield f"{node.name}.{child.name}", child


def that_reach(names: set[str], trees: list[ast.Module]) -> set[str]:
    """Return `names`, and those of the functions of `trees` that can call one of them."""
    called: defaultdict[str, set[str]] = defaultdict(set)
    for tree in trees:
        for _, function in functions(tree):
            called[function.name] |= calls(function.body) - NOT_FOLLOWED
    reaching, count = set(names), 0
    while count < len(reaching):
        count = len(reaching)
        reaching |= {name for name, within in called.items() if within & reaching}
    return reaching - NOT_FOLLOWED


def is_safe(loop: ast.For | ast.While) -> bool:
    """Return whether a loop is over a copy, over the components of the model, or takes each element
    out of its queue before it does anything else."""
    if isinstance(loop, ast.While):
        return bool(calls(loop.body[:1]) & TAKES_OUT)
    match loop.iter:
        case ast.Call(func=ast.Name(name)) if name in COPIES:
            return True
        case (
            ast.Call(func=ast.Attribute(attr="fromkeys"))
            | ast.Call(func=ast.Attribute(attr="pop_expired"))
        ):
            return True
        case ast.ListComp() | ast.Tuple() | ast.Subscript(slice=ast.Slice()):
            return True
        case each:
            return ast.unparse(each).endswith(("_all", "components")) or "_components" in (
                ast.unparse(each)
            )


def find_loops(folder: Path) -> dict[str, ast.FunctionDef | ast.AsyncFunctionDef]:
    """Return the functions of a package with loops whose body can take something away."""
    trees = [ast.parse(file.read_text("utf-8")) for file in sorted(folder.rglob("*.py"))]
    reaching = that_reach(TAKES_AWAY, trees)
    return {
        name: function
        for tree in trees
        for name, function in functions(tree)
        for loop in ast.walk(function)
        if isinstance(loop, ast.For | ast.While)
        if calls(loop.body) & reaching and not is_safe(loop)
    }


def test_each_loop_has_a_test_that_changes_its_list() -> None:
    assert sorted(find_loops(CORE)) == sorted(TESTS)


def test_each_loop_says_what_may_change_meanwhile() -> None:
    loops = find_loops(CORE)
    docs = {name: (ast.get_docstring(loop) or "").lower() for name, loop in loops.items()}
    silent = [name for name, doc in docs.items() if "meanwhile" not in doc]
    assert silent == []


def test_each_test_exists() -> None:
    for test in TESTS.values():
        file, name = test.split("::")
        assert f"def {name}(" in (ROOT / "tests" / file).read_text("utf-8"), test


def test_planted_loop_is_found(tmp_path: Path) -> None:
    (tmp_path / "planted.py").write_text(
        "class Queue:\n"
        "    def drain(self):\n"
        "        for turn in self.turns:\n"
        "            self.stop(turn)\n"
        "    def copied(self):\n"
        "        for turn in list(self.turns):\n"
        "            self.stop(turn)\n"
        "    def stop(self, turn):\n"
        "        self.cache.release(turn)\n"
    )
    assert list(find_loops(tmp_path)) == ["Queue.drain"]
