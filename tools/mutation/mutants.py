"""The bugs. Each is a few textual replacements that must apply exactly once, or the code has moved
on and the bug must be planted anew."""

from pathlib import Path
from typing import NamedTuple

CACHE = "engine/core/cache/session_aware_cache.py"
HOST = "engine/core/cache/host_tier.py"
RADIX = "engine/core/cache/radix_tree.py"
SCHEDULER = "engine/core/schedule/scheduler.py"
BUDGET = "engine/core/schedule/budget.py"
STEP_TIME = "engine/core/schedule/step_time_model.py"
SESSIONS = "engine/core/sessions.py"
HISTORY = "engine/wire/turn_tree.py"
LOG = "engine/wire/token_log.py"
LOOP = "engine/core/loop.py"


class Mutant(NamedTuple):
    name: str
    path: str
    changes: tuple[tuple[str, str], ...]

    def mutate(self, text: str) -> str:
        """The text of its file with the bug in it. Raises ValueError where it does not apply."""
        for old, new in self.changes:
            if text.count(old) != 1:
                places = f"{self.path} has {text.count(old)} places for this bug, not one"
                raise ValueError(f"{self.name}: {places}:\n{old}")
            text = text.replace(old, new)
        return text

    def mutate_file(self, root: Path) -> None:
        file = root / self.path
        file.write_text(self.mutate(file.read_text()))


def _bug(name: str, path: str, *changes: tuple[str, str]) -> Mutant:
    return Mutant(name, path, changes)


MUTANTS = [
    # ---- who owns a page
    _bug(
        "pages let go are not freed",
        CACHE,
        (
            "        self.pool.release(private)\n        self._leased_pages -=",
            "        self._leased_pages -=",
        ),
    ),
    _bug(
        "the tail rule keeps a page too many",
        CACHE,
        (
            "keep = self._pages_for(lease.launched)\n",
            "keep = self._pages_for(lease.launched) + 1\n",
        ),
    ),
    _bug(
        "the tail rule gives nothing back",
        CACHE,
        (
            "        if keep < len(lease.pages):\n            self._release(lease, keep)",
            "        return",
        ),
    ),
    _bug(
        "no tail rule at rewind",
        CACHE,
        (
            "            lease.committed = to\n            self._trim(lease)",
            "            lease.committed = to",
        ),
    ),
    _bug(
        "what a matching lease takes is held twice",
        CACHE,
        (
            "        self.tree.acquire(path)\n",
            "        self.tree.acquire(path)\n        self.tree.acquire(path)\n",
        ),
    ),
    _bug(
        "what is published is not held",
        CACHE,
        ("            self.tree.acquire([node])\n", ""),
    ),
    _bug(
        "shared pages are not dropped at rewind",
        CACHE,
        ("            self.tree.release(lease.path[keep:])\n", ""),
    ),
    _bug(
        "a fork does not hold what it shares",
        CACHE,
        ("        self.tree.acquire(child.path)\n", ""),
    ),
    _bug(
        "a page that was copied stays held",
        CACHE,
        (
            "lease.pages[len(lease.path)] = page\n        self.tree.release([node])",
            "lease.pages[len(lease.path)] = page",
        ),
    ),
    _bug(
        "a published double is not freed",
        CACHE,
        (
            "                self.pool.release([page])\n        lease.pages = pages",
            "        lease.pages = pages",
        ),
    ),
    _bug(
        "a fork's copy is not counted",
        CACHE,
        (
            "page = self.pool.allocate()\n            self._leased_pages += 1\n            "
            "self._moves",
            "page = self.pool.allocate()\n            self._moves",
        ),
    ),
    # ---- what is in a page
    _bug(
        "a shared page is written without a copy",
        CACHE,
        ("copy = len(lease.path) * size > reach", "copy = False"),
    ),
    _bug(
        "a full shared page is copied too",
        CACHE,
        (
            "copy = len(lease.path) * size > reach",
            "copy = lease.path and len(lease.path) * size >= reach",
        ),
    ),
    _bug(
        "the copy of a shared page is forgotten",
        CACHE,
        ('        self._moves.append(PageMove("copy", node.page, page))\n', ""),
    ),
    _bug(
        "the copy of a shared page goes the wrong way",
        CACHE,
        ('PageMove("copy", node.page, page)', 'PageMove("copy", page, node.page)'),
    ),
    _bug(
        "a fork's copy goes the wrong way",
        CACHE,
        (
            'PageMove("copy", lease.pages[len(child.path)], page)',
            'PageMove("copy", page, lease.pages[len(child.path)])',
        ),
    ),
    _bug(
        "a fork copies the page after its last",
        CACHE,
        (
            'PageMove("copy", lease.pages[len(child.path)], page)',
            'PageMove("copy", lease.pages[-1], page)',
        ),
    ),
    _bug(
        "moves are carried out again in the next step",
        CACHE,
        ("        self._moves.clear()\n        return moves", "        return moves"),
    ),
    # ---- how far KV reaches
    _bug(
        "grow is a token short",
        CACHE,
        ("self._pages_for(reach + count) -", "self._pages_for(reach + count - 1) -"),
    ),
    _bug(
        "what a step wrote past the end is believed",
        CACHE,
        (
            "        lease.reserved -= count\n",
            "        lease.reserved -= count\n        kept = count\n",
        ),
    ),
    _bug(
        "reserved is not decreased",
        CACHE,
        ("        lease.reserved -= count\n", ""),
    ),
    _bug(
        "a match may reach past its limit",
        RADIX,
        ("range(0, limit - size + 1, size)", "range(0, limit, size)"),
    ),
    _bug(
        "a match forgets a page it found",
        CACHE,
        (
            "        path = self.tree.match(lease.scope, ids, limit)\n",
            "        path = self.tree.match(lease.scope, ids, limit)[:-1]\n",
        ),
    ),
    _bug(
        "a match looks into any scope",
        RADIX,
        ("node = self._roots.get(scope)", "node = next(iter(self._roots.values()), None)"),
    ),
    _bug(
        "a match disregards what is on the host",
        CACHE,
        (
            "<= lease.resident_tokens:\n            return lease.committed",
            "<= lease.committed:\n            return lease.committed",
        ),
    ),
    _bug(
        "provisional ids are published",
        CACHE,
        ("last = min(limit, lease.committed) // size", "last = lease.committed // size"),
    ),
    # ---- eviction
    _bug(
        "a held page is evicted",
        RADIX,
        ("            and not node.ref_count\n", ""),
        ("            node.last_used = self._tick\n\n    def release", "\n    def release"),
    ),
    _bug(
        "a page is evicted below its continuation",
        RADIX,
        ("            and not node.children\n", ""),
    ),
    _bug(
        "a page is never evicted once it had a continuation",
        RADIX,
        (
            "            if parent.parent is not None and not parent.ref_count:",
            "            if False:",
        ),
    ),
    _bug(
        "held pages still count as evictable",
        RADIX,
        ("            if node.ref_count == 0:\n                self.unreferenced -= 1\n", ""),
    ),
    _bug(
        "the most recently used page is evicted first",
        RADIX,
        ("(self._evictable, (node.last_used,", "(self._evictable, (-node.last_used,"),
        ("            used == node.last_used\n", "            used == -node.last_used\n"),
    ),
    _bug(
        "the most recently used session is evicted first",
        CACHE,
        ("self._evict_tail(next(iter(self._idle))", "self._evict_tail(next(reversed(self._idle))"),
    ),
    _bug(
        "a session that wakes may still be evicted",
        CACHE,
        (
            "    def mark_busy(self, lease: Lease) -> None:\n        self._idle.pop(lease, None)\n",
            "    def mark_busy(self, lease: Lease) -> None:\n",
        ),
    ),
    _bug(
        "a session that rests is never evicted",
        CACHE,
        ("        if lease.pages:\n            self._idle[lease] = None", ""),
    ),
    # ---- the host tier
    _bug(
        "recalled pages come back in reverse",
        HOST,
        (
            "in zip(lease.host_pages, pages, strict=True)",
            "in zip(reversed(lease.host_pages), pages, strict=True)",
        ),
    ),
    _bug(
        "pages spilled later go behind those before",
        HOST,
        (
            "lease.host_pages = slots + lease.host_pages",
            "lease.host_pages = lease.host_pages + slots",
        ),
    ),
    _bug(
        "a spilled last page counts as full",
        HOST,
        ("lease.host_end = lease.committed", "lease.host_end = len(lease.pages) * self._page_size"),
    ),
    _bug(
        "the wrong pages are spilled",
        CACHE,
        (
            "self.host_tier.spill(lease, lease.pages[keep:])",
            "self.host_tier.spill(lease, lease.pages[: len(lease.pages) - keep])",
        ),
    ),
    _bug(
        "host pages are freed twice",
        HOST,
        (
            "        self.recalled_pages += len(pages)\n",
            "        self.recalled_pages += len(pages)\n        "
            "self.pool.release(lease.host_pages)\n",
        ),
    ),
    _bug(
        "host pages are not freed",
        HOST,
        ("        self.pool.release(lease.host_pages[keep:])\n", ""),
    ),
    _bug(
        "rewind does not reach the host",
        CACHE,
        ("        self.host_tier.trim(lease, to)\n", ""),
    ),
    _bug(
        "a closed session stays on the host",
        CACHE,
        (
            "        self.publish(lease, ids, limit)\n        self.host_tier.discard(lease)\n",
            "        self.publish(lease, ids, limit)\n",
        ),
    ),
    _bug(
        "what is being recalled may be pushed out",
        HOST,
        (
            'discarded for others."""\n        self._holders.pop(lease, None)',
            'discarded for others."""',
        ),
    ),
    _bug(
        "the host forgets the latest first",
        HOST,
        ("next((x for x in self._holders if", "next((x for x in reversed(self._holders) if"),
    ),
    # ---- the scheduler
    _bug(
        "older turns are retracted for younger ones",
        SCHEDULER,
        ("for other in reversed(self._turns):", "for other in self._turns:"),
    ),
    _bug(
        "the oldest of the younger turns is retracted first",
        SCHEDULER,
        (
            "                found.append(other)\n        return found",
            "                found.insert(0, other)\n        return found",
        ),
    ),
    _bug(
        "a retracted turn counts as admitted",
        SCHEDULER,
        (
            "        self.retractions += 1\n        sequence.turn.is_admitted = False\n",
            "        self.retractions += 1\n",
        ),
    ),
    _bug(
        "retract frees nothing",
        SCHEDULER,
        ("        self.cache.retract(sequence.lease)\n", ""),
    ),
    _bug(
        "a turn in flight is retracted",
        SCHEDULER,
        (
            "victim = next((s for s in younger if not s.in_flight), None)",
            "victim = next(iter(younger), None)",
        ),
    ),
    _bug(
        "a cached history leaves nothing to draw from",
        SCHEDULER,
        ("        cache.rewind(lease, prompt - 1)\n", ""),
    ),
    _bug(
        "an id is drawn before the end",
        SCHEDULER,
        ("and sequence.can_draw\n", "or sequence.can_draw\n"),
    ),
    _bug(
        "a turn goes on past its limit",
        SCHEDULER,
        ("                and turn.launched_tokens < turn.max_output_tokens\n", ""),
    ),
    _bug(
        "admission does not ask for room",
        SCHEDULER,
        ("if not self._is_oldest(sequence) and pages > cache.available_pages():", "if False:"),
    ),
    _bug(
        "admission asks for free pages, not for those that could be",
        CACHE,
        (
            "return self.pool.total - sum(lease.private_pages for lease in self._busy)",
            "return self.pool.free_count",
        ),
    ),
    _bug(
        "an append that found no room is not idle",
        SCHEDULER,
        ("                cache.mark_idle(lease)\n                del", "                del"),
    ),
    _bug(
        "who waits longest is not remembered",
        SCHEDULER,
        (
            "self._overdue = None if any(row.sequence is oldest for row in rows) else oldest",
            "self._overdue = None",
        ),
    ),
    _bug(
        "a full pool is not made do with",
        SCHEDULER,
        (
            "self.cache.rewind(sequence.lease, sequence.committed // size * size)",
            "self.cache.rewind(sequence.lease, sequence.committed)",
        ),
    ),
    _bug(
        "every turn walks the tree",
        SCHEDULER,
        ("match_shared=sequence.turn_count == 1)", "match_shared=True)"),
    ),
    _bug(
        "after a loss the tree still knows what was in it",
        CACHE,
        (
            "        while (page := self.tree.evict()) is not None:\n"
            "            self.pool.release([page])\n        self._moves.clear()",
            "        self._moves.clear()",
        ),
    ),
    # ---- the budget
    _bug(
        "long prompts: the oldest takes all",
        BUDGET,
        ("share = max(tokens // len(demands), 1)", "share = tokens"),
    ),
    _bug(
        "tokens of a step are not counted",
        BUDGET,
        (
            "        self.remaining_tokens -= tokens\n        self.remaining_rows -= 1",
            "        self.remaining_rows -= 1",
        ),
    ),
    _bug(
        "rows of a step are not counted",
        BUDGET,
        ("        self.remaining_rows -= 1\n", ""),
    ),
    _bug(
        "attention over the context costs nothing",
        BUDGET,
        ("over = tokens * start + tokens * tokens // 2", "over = tokens * tokens // 2"),
    ),
    _bug(
        "a token more than fits",
        STEP_TIME,
        ("        return low\n", "        return min(low + 1, tokens_max)\n"),
    ),
    _bug(
        "an outlier counts in full",
        STEP_TIME,
        ("seconds = min(seconds, OUTLIER_RATIO_MAX * self._predict(load) + 1e-4)", "pass"),
    ),
    _bug(
        "coefficients may be negative",
        STEP_TIME,
        ("[max(c, 0.0) for c in", "[c for c in"),
    ),
    # ---- the turns of a regular session
    _bug(
        "a fork has none of the turns before it",
        LOG,
        ("            child.turn_tree = self.turn_tree.fork(at)\n", "            pass\n"),
    ),
    _bug(
        "a fork has a turn that it has cut",
        HISTORY,
        ("if self._finished.get(past.turn_id) is past:", "if past.turn_id in self._finished:"),
    ),
    _bug(
        "a rewind into an answer forgets its turn",
        HISTORY,
        ("while turn is not None and turn.prompt_tokens > to:", "while turn and turn.length > to:"),
    ),
    _bug(
        "what was appended behind an answer is dropped with it",
        HISTORY,
        ("ids = ids[: past.prompt_tokens] + ids[past.length :]", "ids = ids[: past.prompt_tokens]"),
    ),
    _bug(
        "an answer that was dropped is dropped again, with what stands there now",
        HISTORY,
        ("            past = _truncate(past, past.prompt_tokens)\n", ""),
    ),
    _bug(
        "a turn takes the name of a finished one",
        SESSIONS,
        ("                sequence.log.check_turn_unused(command.turn)\n", ""),
    ),
    _bug(
        "a turn nobody heard of keeps its name",
        SESSIONS,
        ("        log.clear_turns()\n", ""),
    ),
    # ---- a step that is planned before the one before is done
    _bug(
        "pages of a step in flight are changed",
        CACHE,
        ("lease.pages = lease.pages + array(", "lease.pages += array("),
    ),
    _bug(
        "a step that nobody wants is not abandoned",
        LOOP,
        ("            self._discard_unneeded_step(sessions)\n", ""),
    ),
    _bug(
        "what an abandoned step would have written is believed",
        LOOP,
        (
            "        self._roll_back(step.rows)\n        self._advance_idle(step.rows, sessions)",
            "        empty = BatchResult([None] * len(step.rows), 0.0)\n"
            "        self.apply_result(step, empty, sessions)",
        ),
    ),
    _bug(
        "what is to be read waits while some of it is in flight",
        SCHEDULER,
        ("if sequence.in_flight and sequence.deferred:", "if sequence.in_flight:"),
    ),
    _bug(
        "what is asked of a session waits until all of it is read",
        SCHEDULER,
        (
            "            if sequence.in_flight and sequence.deferred:\n                continue\n",
            "",
        ),
    ),
    _bug(
        "an abandoned step keeps its pages",
        LOOP,
        (
            "        self._roll_back(step.rows)\n        self._advance_idle(",
            "        self._advance_idle(",
        ),
    ),
    # ---- what is left of a session, and the books of an idle engine
    _bug(
        "a closed session always leaves its prefix",
        SESSIONS,
        (
            "shared = sequence.log.length if command.keep_prefix else 0",
            "shared = sequence.log.length",
        ),
    ),
    _bug(
        "a closed session never leaves its prefix",
        SESSIONS,
        ("shared = sequence.log.length if command.keep_prefix else 0", "shared = 0"),
    ),
    _bug(
        "an idle engine does not prove its books",
        LOOP,
        ("                self._audit_idle()\n", ""),
    ),
    _bug(
        "an engine proves its books while a turn runs",
        LOOP,
        (
            "            if self._audit_every_step:\n                self._cache.audit()",
            "            if not self._steps_in_flight:\n                self._audit_idle()",
        ),
    ),
    _bug(
        "a fault in the books is not counted",
        LOOP,
        ("            self._counters.failed_audits += 1\n", ""),
    ),
]
