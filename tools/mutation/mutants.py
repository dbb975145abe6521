"""The planted bugs, as textual replacements in source files.

The old text of each replacement must occur exactly once in its file. If the code has changed so
that it does not, the bug must be updated.
"""

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
    """A planted bug: a name that describes it, the path of its file, and pairs of old and new
    text."""

    name: str
    path: str
    changes: tuple[tuple[str, str], ...]

    def mutate(self, text: str) -> str:
        """Return `text`, the content of the file, with the bug in it.

        Raises ValueError unless each old text occurs exactly once.
        """
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
    # ---- ownership of pages
    _bug(
        "released pages are not freed",
        CACHE,
        (
            "        self.pool.release(private)\n        self._leased_pages -=",
            "        self._leased_pages -=",
        ),
    ),
    _bug(
        "trim keeps a page too many",
        CACHE,
        (
            "keep = self._pages_for(lease.launched)\n",
            "keep = self._pages_for(lease.launched) + 1\n",
        ),
    ),
    _bug(
        "trim releases nothing",
        CACHE,
        (
            "        if keep < len(lease.pages):\n            self._release(lease, keep)",
            "        return",
        ),
    ),
    _bug(
        "rewind does not trim",
        CACHE,
        (
            "            lease.committed = to\n            self._trim(lease)",
            "            lease.committed = to",
        ),
    ),
    _bug(
        "matched nodes are acquired twice",
        CACHE,
        (
            "        self.tree.acquire(path)\n",
            "        self.tree.acquire(path)\n        self.tree.acquire(path)\n",
        ),
    ),
    _bug(
        "published nodes are not acquired",
        CACHE,
        ("            self.tree.acquire([node])\n", ""),
    ),
    _bug(
        "rewind does not release shared nodes",
        CACHE,
        ("            self.tree.release(lease.path[keep:])\n", ""),
    ),
    _bug(
        "a fork does not acquire shared nodes",
        CACHE,
        ("        self.tree.acquire(child.path)\n", ""),
    ),
    _bug(
        "the node of a copied page is not released",
        CACHE,
        (
            "lease.pages[len(lease.path)] = page\n        self.tree.release([node])",
            "lease.pages[len(lease.path)] = page",
        ),
    ),
    _bug(
        "a duplicate page is not freed on publish",
        CACHE,
        (
            "                self.pool.release([page])\n        lease.pages = pages",
            "        lease.pages = pages",
        ),
    ),
    _bug(
        "the page that a fork copies is not counted",
        CACHE,
        (
            "page = self.pool.allocate()\n            self._leased_pages += 1\n            "
            "self._moves",
            "page = self.pool.allocate()\n            self._moves",
        ),
    ),
    # ---- contents of pages
    _bug(
        "a shared page is written without a copy",
        CACHE,
        ("copy = len(lease.path) * size > reach", "copy = False"),
    ),
    _bug(
        "a full shared page is also copied",
        CACHE,
        (
            "copy = len(lease.path) * size > reach",
            "copy = lease.path and len(lease.path) * size >= reach",
        ),
    ),
    _bug(
        "the copy of a shared page is omitted",
        CACHE,
        ('        self._moves.append(PageMove("copy", node.page, page))\n', ""),
    ),
    _bug(
        "the copy of a shared page is reversed",
        CACHE,
        ('PageMove("copy", node.page, page)', 'PageMove("copy", page, node.page)'),
    ),
    _bug(
        "the copy of a fork is reversed",
        CACHE,
        (
            'PageMove("copy", lease.pages[len(child.path)], page)',
            'PageMove("copy", page, lease.pages[len(child.path)])',
        ),
    ),
    _bug(
        "a fork copies the wrong page",
        CACHE,
        (
            'PageMove("copy", lease.pages[len(child.path)], page)',
            'PageMove("copy", lease.pages[-1], page)',
        ),
    ),
    _bug(
        "page moves are repeated in the next step",
        CACHE,
        ("        self._moves.clear()\n        return moves", "        return moves"),
    ),
    # ---- extent of KV
    _bug(
        "grow reserves a token too few",
        CACHE,
        ("self._pages_for(reach + count) -", "self._pages_for(reach + count - 1) -"),
    ),
    _bug(
        "tokens written past the end count as committed",
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
        "a match may exceed its limit",
        RADIX,
        ("range(0, limit - size + 1, size)", "range(0, limit, size)"),
    ),
    _bug(
        "a match omits its last page",
        CACHE,
        (
            "        path = self.tree.match(lease.scope, ids, limit)\n",
            "        path = self.tree.match(lease.scope, ids, limit)[:-1]\n",
        ),
    ),
    _bug(
        "a match ignores the cache scope",
        RADIX,
        ("node = self._roots.get(scope)", "node = next(iter(self._roots.values()), None)"),
    ),
    _bug(
        "a match ignores pages on the host",
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
        "a referenced page is evicted",
        RADIX,
        ("            and not node.ref_count\n", ""),
        ("            node.last_used = self._tick\n\n    def release", "\n    def release"),
    ),
    _bug(
        "a page with children is evicted",
        RADIX,
        ("            and not node.children\n", ""),
    ),
    _bug(
        "a page that had children is never evicted",
        RADIX,
        (
            "            if parent.parent is not None and not parent.ref_count:",
            "            if False:",
        ),
    ),
    _bug(
        "referenced pages count as evictable",
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
        "a busy session may be evicted",
        CACHE,
        (
            "    def mark_busy(self, lease: PageLease) -> None:\n"
            "        self._idle.pop(lease, None)\n",
            "    def mark_busy(self, lease: PageLease) -> None:\n",
        ),
    ),
    _bug(
        "an idle session is never evicted",
        CACHE,
        ("        if lease.pages:\n            self._idle[lease] = None", ""),
    ),
    # ---- the host tier
    _bug(
        "pages are recalled in reverse",
        HOST,
        (
            "in zip(lease.host_pages, pages, strict=True)",
            "in zip(reversed(lease.host_pages), pages, strict=True)",
        ),
    ),
    _bug(
        "later spilled pages are appended instead of prepended",
        HOST,
        (
            "lease.host_pages = slots + lease.host_pages",
            "lease.host_pages = lease.host_pages + slots",
        ),
    ),
    _bug(
        "a partial page counts as full once spilled",
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
        "rewind does not trim the host tier",
        CACHE,
        ("        self.host_tier.trim(lease, to)\n", ""),
    ),
    _bug(
        "host pages of a closed session are not discarded",
        CACHE,
        (
            "        self.publish(lease, ids, limit)\n        self.host_tier.discard(lease)\n",
            "        self.publish(lease, ids, limit)\n",
        ),
    ),
    _bug(
        "pages being recalled may be evicted",
        HOST,
        (
            'make room."""\n        self._holders.pop(lease, None)',
            'make room."""',
        ),
    ),
    _bug(
        "the host tier evicts the most recent session first",
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
        "a fully cached prompt leaves no token to compute",
        SCHEDULER,
        ("        cache.rewind(lease, prompt - 1)\n", ""),
    ),
    _bug(
        "an id is drawn before the end",
        SCHEDULER,
        ("and sequence.can_draw\n", "or sequence.can_draw\n"),
    ),
    _bug(
        "a turn exceeds its token limit",
        SCHEDULER,
        ("                and turn.launched_tokens < turn.max_output_tokens\n", ""),
    ),
    _bug(
        "admission ignores free memory",
        SCHEDULER,
        ("if not self._is_oldest(sequence) and pages > cache.available_pages():", "if False:"),
    ),
    _bug(
        "admission ignores evictable pages",
        CACHE,
        (
            "return self.pool.total - sum(lease.private_pages for lease in self._busy)",
            "return self.pool.free_count",
        ),
    ),
    _bug(
        "an append without memory is not marked idle",
        SCHEDULER,
        ("                cache.mark_idle(lease)\n                del", "                del"),
    ),
    _bug(
        "the longest waiting sequence is not recorded",
        SCHEDULER,
        (
            "self._overdue = None if any(row.sequence is oldest for row in rows) else oldest",
            "self._overdue = None",
        ),
    ),
    _bug(
        "a full pool does not rewind to a page boundary",
        SCHEDULER,
        (
            "self.cache.rewind(sequence.lease, sequence.committed // size * size)",
            "self.cache.rewind(sequence.lease, sequence.committed)",
        ),
    ),
    _bug(
        "every turn walks the radix tree",
        SCHEDULER,
        ("match_shared=sequence.turn_count == 1)", "match_shared=True)"),
    ),
    _bug(
        "the radix tree is kept after a loss of the device",
        CACHE,
        (
            "        while (page := self.tree.evict()) is not None:\n"
            "            self.pool.release([page])\n        self._moves.clear()",
            "        self._moves.clear()",
        ),
    ),
    # ---- the budget
    _bug(
        "the oldest long prompt takes all tokens of a step",
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
        "the cost of attention over the context is ignored",
        BUDGET,
        ("over = tokens * start + tokens * tokens // 2", "over = tokens * tokens // 2"),
    ),
    _bug(
        "a step gets a token more than fits",
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
        "a fork has no earlier turns",
        LOG,
        ("            child.turn_tree = self.turn_tree.fork(at)\n", "            pass\n"),
    ),
    _bug(
        "a fork keeps a turn that it has truncated",
        HISTORY,
        ("if self._finished.get(past.turn_id) is past:", "if past.turn_id in self._finished:"),
    ),
    _bug(
        "a rewind into a turn's output drops the turn",
        HISTORY,
        ("while turn is not None and turn.prompt_tokens > to:", "while turn and turn.length > to:"),
    ),
    _bug(
        "ids appended after a turn's output are dropped with it",
        HISTORY,
        ("ids = ids[: past.prompt_tokens] + ids[past.length :]", "ids = ids[: past.prompt_tokens]"),
    ),
    _bug(
        "a dropped output is dropped again, with the ids in its place",
        HISTORY,
        ("            past = _truncate(past, past.prompt_tokens)\n", ""),
    ),
    _bug(
        "a turn may reuse the id of a finished one",
        SESSIONS,
        ("                sequence.log.check_turn_unused(command.turn)\n", ""),
    ),
    _bug(
        "the id of an unreported turn is not cleared",
        SESSIONS,
        ("        log.clear_turns()\n", ""),
    ),
    # ---- steps planned while the previous one is in flight
    _bug(
        "pages of a step in flight are changed",
        CACHE,
        ("lease.pages = lease.pages + array(", "lease.pages += array("),
    ),
    _bug(
        "an unneeded step is not discarded",
        LOOP,
        ("            self._discard_unneeded_step(sessions)\n", ""),
    ),
    _bug(
        "KV of a discarded step counts as committed",
        LOOP,
        (
            "        self._roll_back(step.rows)\n        self._advance_idle(step.rows, sessions)",
            "        empty = BatchResult([None] * len(step.rows), 0.0)\n"
            "        self.apply_result(step, empty, sessions)",
        ),
    ),
    _bug(
        "an append waits while a part of it is in flight",
        SCHEDULER,
        ("if sequence.in_flight and sequence.deferred:", "if sequence.in_flight:"),
    ),
    _bug(
        "a deferred command waits until an append is complete",
        SCHEDULER,
        (
            "            if sequence.in_flight and sequence.deferred:\n                continue\n",
            "",
        ),
    ),
    _bug(
        "a discarded step keeps its pages",
        LOOP,
        (
            "        self._roll_back(step.rows)\n        self._advance_idle(",
            "        self._advance_idle(",
        ),
    ),
    # ---- closed sessions, and the audit of an idle engine
    _bug(
        "a closed session always publishes its prefix",
        SESSIONS,
        (
            "shared = sequence.log.length if command.keep_prefix else 0",
            "shared = sequence.log.length",
        ),
    ),
    _bug(
        "a closed session never publishes its prefix",
        SESSIONS,
        ("shared = sequence.log.length if command.keep_prefix else 0", "shared = 0"),
    ),
    _bug(
        "an idle engine is not audited",
        LOOP,
        ("                self._audit_idle()\n", ""),
    ),
    _bug(
        "an engine is audited as idle while a turn runs",
        LOOP,
        (
            "            if self._audit_every_step:\n                self._cache.audit()",
            "            if not self._steps_in_flight:\n                self._audit_idle()",
        ),
    ),
    _bug(
        "a failed audit is not counted",
        LOOP,
        ("            self._counters.failed_audits += 1\n", ""),
    ),
]
