"""The planted bugs, as textual replacements in source files.

The old text of each replacement must occur exactly once in its file. If the code has changed so
that it does not, the bug must be updated.
"""

from pathlib import Path
from typing import NamedTuple

CACHE = "engine/core/cache/session_aware_cache.py"
PAGE_USAGE = "engine/core/cache/page_usage.py"
HOST = "engine/core/cache/host_tier.py"
RADIX = "engine/core/cache/radix_tree.py"
WINDOWS = "engine/core/cache/window_pages.py"
STATES = "engine/core/cache/state_pool.py"
MARKS = "engine/core/cache/marks.py"
COMPONENTS = "engine/core/cache/components.py"
SCHEDULER = "engine/core/schedule/scheduler.py"
STEP = "engine/core/schedule/step.py"
PACKING = "engine/core/schedule/packing.py"
STEP_TIME = "engine/core/schedule/step_time.py"
ADMISSION = "engine/core/schedule/admission.py"
GROWTH = "engine/core/schedule/growth.py"
PREFIXES = "engine/core/prefixes_in_flight.py"
QUEUE = "engine/core/schedule/turn_queue.py"
SESSIONS = "engine/core/sessions.py"
TRANSITIONS = "engine/core/transitions.py"
BACKEND = "engine/core/paged_backend.py"
HISTORY = "engine/wire/turn_tree.py"
LOG = "engine/wire/token_log.py"
LOOP = "engine/core/loop.py"
TURN = "engine/core/turn.py"
GRAMMAR = "engine/text/grammar.py"
SPECULATION = "engine/core/speculation/speculation.py"
NGRAMS = "engine/core/speculation/ngram_index.py"
GAIN = "engine/core/speculation/draft_gain.py"


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
            "        self.pool.release(private)\n        self.usage.leased_pages -=",
            "        self.usage.leased_pages -=",
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
            "if self.has_components else to\n            self._trim(lease)",
            "if self.has_components else to",
        ),
    ),
    _bug(
        "matched nodes are acquired twice",
        CACHE,
        (
            "        self.tree.acquire(found)\n",
            "        self.tree.acquire(found)\n        self.tree.acquire(found)\n",
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
            "page = self.pool.allocate()\n            self.usage.leased_pages += 1\n            "
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
    # ---- blank pages
    _bug(
        "a page that is handed out is not blanked",
        CACHE,
        ("            self._moves.blank(pages)\n", ""),
    ),
    _bug(
        "a window page that is handed out is not blanked",
        WINDOWS,
        ("            self._moves.blank(pages, self.group)\n", ""),
    ),
    _bug(
        "a state slot that is handed out is not blanked",
        STATES,
        ("        self._moves.blank((slot,), self.group)\n", ""),
    ),
    _bug(
        "a page is blanked after it was copied to",
        CACHE,
        (
            '        self._moves.append(PageMove("copy", node.page, page))\n',
            '        self._moves.append(PageMove("copy", node.page, page))\n'
            "        self._moves.blank((page,))\n",
        ),
    ),
    _bug(
        "a page is blanked after it was recalled",
        CACHE,
        (
            "        self.host_tier.recall(lease, pages)\n",
            "        self.host_tier.recall(lease, pages)\n        self._moves.blank(pages)\n",
        ),
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
        (
            "range(len(known) * size, limit - size + 1, size)",
            "range(len(known) * size, limit, size)",
        ),
    ),
    _bug(
        "a match omits its last page",
        CACHE,
        (
            "        found = self.tree.match(lease.scope, ids, limit, kept)\n",
            "        found = self.tree.match(lease.scope, ids, limit, kept)[:-1]\n",
        ),
    ),
    _bug(
        "a match ignores the cache scope",
        RADIX,
        (
            "else self._roots.get(scope)\n        size",
            "else next(iter(self._roots.values()), None)\n        size",
        ),
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
        ("min(limit, lease.committed) // size", "lease.committed // size"),
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
            "        self._remove_idle(lease)\n",
            "    def mark_busy(self, lease: PageLease) -> None:\n",
        ),
    ),
    _bug(
        "an idle session is never evicted",
        CACHE,
        (
            "        if lease.pages:\n            self._idle[lease]",
            "        if False:\n            self._idle[lease]",
        ),
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
        ("        if lease.host_pages:\n            self.host_tier.trim(lease, to)\n", ""),
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
        ADMISSION,
        ("_rank(other) > _rank(sequence)\n", "_rank(other) < _rank(sequence)\n"),
    ),
    _bug(
        "the oldest of the younger turns is retracted first",
        ADMISSION,
        ("sorted(found, key=_rank, reverse=True)", "sorted(found, key=_rank)"),
    ),
    _bug(
        "a retracted turn counts as admitted",
        ADMISSION,
        ("        sequence.turn.is_admitted = False\n", ""),
    ),
    _bug(
        "retract frees nothing",
        ADMISSION,
        ("        self._cache.mark_idle(sequence.lease)\n", ""),
    ),
    _bug(
        "a turn in flight is retracted",
        PACKING,
        (
            "victim = next((s for s in later if not s.in_flight), None)",
            "victim = next(iter(later), None)",
        ),
    ),
    _bug(
        "a fully cached prompt leaves no token to compute",
        SCHEDULER,
        ("        self.cache.rewind(lease, len(sequence.ids) - 1)\n", ""),
    ),
    _bug(
        "an id is drawn before the end",
        PACKING,
        ("and sequence.can_draw\n", "or sequence.can_draw\n"),
    ),
    _bug(
        "a turn exceeds its token limit",
        SCHEDULER,
        ("                and turn.launched_tokens < turn.max_output_tokens\n", ""),
    ),
    _bug(
        "admission ignores free memory",
        ADMISSION,
        ("        if needed > usage.available_pages(freed):\n            return False\n", ""),
    ),
    _bug(
        "admission ignores evictable pages",
        PAGE_USAGE,
        (
            "return self._pool.total - exclusive - sum(shared.values())",
            "return self._pool.free_count",
        ),
    ),
    _bug(
        "an append without memory is not marked idle",
        SCHEDULER,
        ("            if not in_flight:\n                cache.mark_idle(lease)\n", ""),
    ),
    _bug(
        "the longest waiting sequence is not recorded",
        SCHEDULER,
        (
            "self._overdue = min(missed, key=lambda s: s.turn.arrival if s.turn else 0)",
            "self._overdue = None",
        ),
    ),
    _bug(
        "a full pool does not rewind to a page boundary",
        PACKING,
        (
            "self._cache.rewind(sequence.lease, sequence.committed // size * size)",
            "self._cache.rewind(sequence.lease, sequence.committed)",
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
    # ---- turns under load
    _bug(
        "a prompt is computed beside the same prompt",
        PREFIXES,
        ("return end <= other.publish_to and", "return False and"),
    ),
    _bug(
        "a turn waits for a prefix of another cache scope",
        PREFIXES,
        ("return sequence.lease.scope, node,", 'return "", node,'),
    ),
    _bug(
        "a prompt is published only when it is complete",
        LOOP,
        (
            "        self._cache.publish(sequence.lease, sequence.ids, sequence.publish_to)\n"
            "        if sequence.committed >= sequence.publish_to:\n",
            "        if sequence.committed >= sequence.publish_to:\n"
            "            self._cache.publish(sequence.lease, sequence.ids, sequence.publish_to)\n",
        ),
    ),
    _bug(
        "admission ignores the growth of turns",
        ADMISSION,
        ("return peak <= OVERCOMMITMENT * pool", "return True"),
    ),
    _bug(
        "an admitted turn takes the pages of a retracted one",
        ADMISSION,
        ("{*retracted, sequence}", "{sequence}"),
    ),
    _bug(
        "admissions are not paced after a retraction",
        ADMISSION,
        ("self._paced_until = step + PACED_STEPS", "self._paced_until = step"),
    ),
    _bug(
        "the estimate of outputs does not learn",
        GROWTH,
        ("        self._recent.append(output_tokens)\n", "        return\n"),
    ),
    _bug(
        "a turn is overtaken for ever",
        QUEUE,
        ("    return turn.first_step + patience\n", "    return patience\n"),
    ),
    _bug(
        "long turns are served in the order of their arrival",
        QUEUE,
        (
            "place = turn.sampling.priority, turn.due_step, turn",
            "place = turn.sampling.priority, 0.0, turn",
        ),
    ),
    _bug(
        "priorities are ignored",
        QUEUE,
        ("place = turn.sampling.priority, turn", "place = 0, turn"),
    ),
    _bug(
        "the tokens of a group are not counted",
        QUEUE,
        ("        group.virtual_time += served\n        insort", "        insort"),
    ),
    _bug(
        "the rows of a full step are not shared among groups",
        PACKING,
        ("(rows[sequence.group] / sequence.weight, len", "(0.0, len"),
    ),
    _bug(
        "a group does not claim its share of the pages",
        ADMISSION,
        (
            "        return self._claim(sequence, needed) if held <= share * total else None\n",
            "        return None\n",
        ),
    ),
    _bug(
        "a turn waits for admission behind others though it is admitted",
        SCHEDULER,
        ("filter(search.takes, chain(first, admitted))", "filter(search.takes, first)"),
    ),
    _bug(
        "more turns than rows do not rotate",
        PACKING,
        (
            "ordered = sorted(live, key=lambda s: s.turn.last_step if s.turn else 0)",
            "ordered = live",
        ),
    ),
    # ---- the budget
    _bug(
        "tokens of a step are not counted",
        PACKING,
        ("        self.remaining_tokens -= tokens\n", ""),
    ),
    _bug(
        "rows of a step are not counted",
        PACKING,
        ("        self.remaining_rows -= 1\n", ""),
    ),
    _bug(
        "the cost of attention over the context is ignored",
        STEP,
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
        ("seconds = np.minimum(seconds, OUTLIER_RATIO_MAX * predicted + 1e-4)", "pass"),
    ),
    _bug(
        "coefficients may be negative",
        STEP_TIME,
        ("np.maximum(solution, 0.0)", "np.array(solution)"),
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
        TRANSITIONS,
        ("        log.clear_turns()\n", ""),
    ),
    # ---- windows, states and marks
    _bug(
        "the floor of a window moves a page too far",
        WINDOWS,
        (
            "return max(position - self.window + 1, 0) // self._page_size",
            "return -(-max(position - self.window + 1, 0) // self._page_size)",
        ),
    ),
    _bug(
        "the pages of a window are never freed",
        WINDOWS,
        (
            "        if first > part.first:\n            self._advance",
            "        if False:\n            self._advance",
        ),
    ),
    _bug(
        "a mark does not keep its window",
        WINDOWS,
        ("            if self._is_needed(lease, index):\n", "            if False:\n"),
    ),
    _bug(
        "the window of a dropped mark is not freed",
        WINDOWS,
        ("[n for n in passed if not self._is_needed(lease, n)]", "list[int]()"),
    ),
    _bug(
        "the window pages of a running answer are not kept",
        WINDOWS,
        ("return index in self._answer_pages(lease) or any(", "return any("),
    ),
    _bug(
        "ids that are appended after an answer count as part of it",
        BACKEND,
        ("        self._cache.components.end_turn(sequence.lease)\n", ""),
    ),
    _bug(
        "a very long answer keeps all its window pages",
        COMPONENTS,
        ("- answer.start > self._answer_tokens_max", "- answer.start > OPEN_END"),
    ),
    _bug(
        "a match accepts a node without its window page",
        WINDOWS,
        (
            "if path[n].units[self.index] < 0), None)",
            "if path[n].units[self.index] < -1), None)",
        ),
    ),
    _bug(
        "a match accepts a node without a state",
        STATES,
        (
            "        while depth and path[depth - 1].units[self.index] < 0:\n",
            "        while False:\n",
        ),
    ),
    _bug(
        "the copied page of a window keeps its holder",
        WINDOWS,
        ("            self.pool.release(last)\n", ""),
    ),
    _bug(
        "a shared window page is written",
        WINDOWS,
        (
            '[:-1] + array("i", [page])\n            self.pool.release(last)\n',
            "\n            self.pool.release(page)\n",
        ),
    ),
    _bug(
        "a mark shares its slot with the live state uncounted",
        STATES,
        (
            "slot = self._share(self._slot_at(lease, to))\n        self._release",
            "slot = self._slot_at(lease, to)\n        self._release",
        ),
    ),
    _bug(
        "a row writes the state that it reads",
        STATES,
        ("return StateSlots(live[-2], live[-1])", "return StateSlots(live[-2], live[-2])"),
    ),
    _bug(
        "a row reads the committed state, not that of the step in flight",
        STATES,
        ("return StateSlots(live[-2], live[-1])", "return StateSlots(live[0], live[-1])"),
    ),
    _bug(
        "the states in flight are turned twice",
        STATES,
        (
            "part.marked[start] = passed\n        else:\n            self._release(passed)\n",
            "part.marked[start] = passed\n        else:\n            self._release(passed)\n"
            "            if is_kept and len(part.live) > 1:\n"
            "                self._release(part.live.pop(0))\n",
        ),
    ),
    _bug(
        "an abandoned step leaves its state as the newest",
        STATES,
        ("part.live.pop(0 if is_kept else 1)", "part.live.pop(0)"),
    ),
    _bug(
        "a row that was cut in its middle keeps its tokens",
        CACHE,
        (
            "        elif not self.components.states:\n            lease.committed += kept or 0",
            "        else:\n            lease.committed += kept or 0",
        ),
    ),
    _bug(
        "a rewind ignores windows and states",
        CACHE,
        ("self.components.rewind(lease, to) if self.has_components else to", "to"),
    ),
    _bug(
        "a rewind never uses a mark",
        COMPONENTS,
        (
            "candidates = (limit, *(mark for mark in reversed(lease.marks) if mark < limit))",
            "candidates = (limit,)",
        ),
    ),
    _bug(
        "a fork ignores windows and states",
        CACHE,
        (
            "            at = self.components.newest_held(lease, at)\n        self.publish",
            "            pass\n        self.publish",
        ),
    ),
    _bug(
        "marks inside an answer are never thinned",
        MARKS,
        ("    if sum(x > anchor for x in kept) > MARKS_MAX:\n", "    if False:\n"),
    ),
    _bug(
        "the anchor of an answer is not kept",
        MARKS,
        (
            "    kept = [x for x in marks if x <= anchor or",
            "    kept = [x for x in marks if x < anchor or x > anchor and",
        ),
    ),
    _bug(
        "an append computes the last ids of a model with marks",
        CACHE,
        ("return self.components.last_boundary(length) if self.has_components else", "return"),
    ),
    _bug(
        "an idle session is evicted in part though its state is not",
        CACHE,
        (
            "if self.has_components:\n            self._evict_whole",
            "if False:\n            self._evict_whole",
        ),
    ),
    _bug(
        "the last window and the state are not spilled",
        HOST,
        (
            "for place in places_of(component, positions)\n            }",
            "for place in places_of(component, ())\n            }",
        ),
    ),
    _bug(
        "the marks of a session are not spilled",
        HOST,
        ("lease.host_marks = positions[1:]", "lease.host_marks = []"),
    ),
    _bug(
        "a mark that is discarded on the host keeps its slot",
        HOST,
        ("[place for place in units if place > last]", "[]"),
    ),
    _bug(
        "a mark on the host has the state of another",
        HOST,
        (
            "unit = component.unit_at(lease, place)",
            "unit = component.unit_at(lease, max(slots))",
        ),
    ),
    _bug(
        "an idle session loses the start of its answer with the marks inside it",
        COMPONENTS,
        ("self.set_marks(lease, lease.marks[:1])", "self.set_marks(lease, [])"),
    ),
    _bug(
        "a running turn loses the start of its answer with the marks inside it",
        COMPONENTS,
        ("        if inside is not None:\n", "        if False:\n"),
    ),
    _bug(
        "a session is recalled without its marks",
        CACHE,
        ("            self.components.restore_marks(lease, marks)\n", "            pass\n"),
    ),
    _bug(
        "marks stay on the host while histories are discarded",
        HOST,
        ("self.pool.free_count >= pages and self._drop_marks()", "False"),
    ),
    _bug(
        "a prompt leaves no state where it branches",
        COMPONENTS,
        ("        if pages - known >= BRANCH_PAGES_MIN:\n", "        if False:\n"),
    ),
    _bug(
        "a row passes the place where its prompt branches",
        COMPONENTS,
        ("for stop in (lease.branch, lease.anchor) if", "for stop in (lease.anchor,) if"),
    ),
    _bug(
        "a prompt leaves a state at every branch",
        COMPONENTS,
        ("if pages - known >= BRANCH_PAGES_MIN:", "if pages > known:"),
    ),
    _bug(
        "the state where prompts branch is evicted before marks inside answers",
        CACHE,
        ("is_state = component is self.components.states", "is_state = False"),
    ),
    _bug(
        "the state where prompts branch outlives the sessions that share them",
        RADIX,
        ("keeps_branches and node.ref_count > 1 and len", "keeps_branches and len"),
    ),
    _bug(
        "a state that is kept cannot be evicted later",
        RADIX,
        ("        for entry in kept:\n            heapq.heappush(heap, entry)\n", ""),
    ),
    _bug(
        "an evicted node keeps its units",
        RADIX,
        (
            "self._drop_unit(node, component)\n            if parent.parent",
            "pass\n            if parent.parent",
        ),
    ),
    # ---- steps planned while the previous one is in flight
    _bug(
        "pages of a step in flight are changed",
        CACHE,
        (
            "lease.pages = lease.pages + pages\n            self.usage",
            "lease.pages += pages\n            self.usage",
        ),
    ),
    _bug(
        "an unneeded step is not discarded",
        LOOP,
        ("            self._discard_unneeded_step(sessions)\n", ""),
    ),
    _bug(
        "a short turn waits for the end of a prefill step",
        LOOP,
        ("            if self._scheduler.has_new_short_turn:\n", "            if False:\n"),
    ),
    _bug(
        "a prefill step is discarded although it ends soon",
        LOOP,
        ("if self._run_for_a_while() < DISCARD_GAIN_S_MIN:", "if not self._run_for_a_while():"),
    ),
    _bug(
        "a prefill step is discarded for a long turn",
        SCHEDULER,
        (
            "self.has_new_short_turn |= sequence in self._short.places",
            "self.has_new_short_turn = True",
        ),
    ),
    _bug(
        "a step with a decode is discarded for a short turn",
        SCHEDULER,
        ("(has_live_rows := bool(step.rows))", "(has_live_rows := False)"),
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
        ("if in_flight and sequence.deferred:", "if in_flight:"),
    ),
    _bug(
        "a deferred command waits until an append is complete",
        SCHEDULER,
        ("            if in_flight and sequence.deferred:\n                continue\n", ""),
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
        ("            self._counters.failed_audits += 1\n            log.", "            log."),
    ),
    _bug(
        "a step with misplaced rows is not counted",
        LOOP,
        ("            self._counters.failed_audits += 1\n            return", "            return"),
    ),
    _bug(
        "two rows of a sequence are built",
        LOOP,
        (
            "        if start != lease.committed + lease.reserved - count:\n"
            "            raise MisplacedRows(sequence, start, count)\n",
            "",
        ),
    ),
    _bug(
        "a turn is queued while the step is planned that retracted it",
        SCHEDULER,
        (
            "        for victim in victims:\n            self.retract(victim)\n",
            "        for victim in victims:\n"
            "            self.retract(victim)\n            self._queue(victim)\n",
        ),
    ),
    _bug(
        "a turn retracted while a step is planned is not queued again",
        ADMISSION,
        ("        self.unqueued.append(sequence)\n", ""),
    ),
    _bug(
        "the KV of a refused draft is kept",
        LOOP,
        (
            "                break\n            result = drawn.after_drafts[accepted]\n",
            "                accepted += len(ids) <= len(drafts)\n"
            "                break\n            result = drawn.after_drafts[accepted]\n",
        ),
    ),
    _bug(
        "an id drawn after a refused draft is kept",
        LOOP,
        (
            "            if accepted == len(drafts) or drafts[accepted] != result.id:\n",
            "            if accepted == len(drafts):\n",
        ),
    ),
    _bug(
        "the KV of accepted drafts is released",
        LOOP,
        (
            "kept += self._apply_drawn(sequence, turn, drawn, drafts, sessions)",
            "self._apply_drawn(sequence, turn, drawn, drafts, sessions)",
        ),
    ),
    _bug(
        "drafts after the end of a turn are applied",
        TRANSITIONS,
        (
            "            if end_reason is not None:\n                break\n        if count:",
            "        if count:",
        ),
    ),
    _bug(
        "refused drafts count as launched output",
        LOOP,
        ("        turn.launched_tokens -= 1 + drafts - ids\n", ""),
    ),
    _bug(
        "a failed step leaves drafts promised",
        LOOP,
        ("row.sequence.promised -= len(row.drafts) or 1", "row.sequence.promised -= 1"),
    ),
    _bug(
        "a turn draws beside its drafts in flight",
        LOOP,
        (
            "            sequence.promised += len(drafts) or 1",
            "            sequence.promised += len(drafts) + 1",
        ),
        (
            "            sequence.promised -= len(drafts) or 1",
            "            sequence.promised -= len(drafts) + 1",
        ),
    ),
    _bug(
        "a row has drafts before the end of the log",
        PACKING,
        (
            "if sequence.promised or self._fault_isolation.groups or not is_last:",
            "if sequence.promised or self._fault_isolation.groups:",
        ),
    ),
    _bug(
        "a fed row has drafts",
        PACKING,
        (
            "if sequence.promised or self._fault_isolation.groups or not is_last:",
            "if self._fault_isolation.groups or not is_last:",
        ),
    ),
    _bug(
        "drafts take the tokens of later rows",
        PACKING,
        (
            "room = step.remaining_tokens - count - (step.remaining_rows - 1)",
            "room = step.remaining_tokens - count",
        ),
    ),
    _bug(
        "a faulty row is searched with drafts",
        PACKING,
        (
            "if sequence.promised or self._fault_isolation.groups or not is_last:",
            "if sequence.promised or not is_last:",
        ),
    ),
    _bug(
        "drafts are drawn with the random number of the first id",
        TURN,
        (
            "samples = [self.next_sample() for _ in drafts]",
            "samples = [self.next_sample()] * len(drafts)\n"
            "        self.launched_tokens += len(drafts) - 1",
        ),
    ),
    _bug(
        "drafts exceed the limit of a turn",
        SPECULATION,
        ("turn.max_output_tokens - turn.launched_tokens - 1)", "turn.max_output_tokens)"),
    ),
    _bug(
        "turns with penalties have drafts",
        TURN,
        (
            "        return self.penalized is None\n\n    def fit_drafts",
            "        return True\n\n    def fit_drafts",
        ),
    ),
    _bug(
        "masks of drafts lack the drafts",
        GRAMMAR,
        ("            matcher.accept(self._drafts[len(self._masks)])\n", ""),
    ),
    _bug(
        "drafts advance the matcher of their turn",
        GRAMMAR,
        ("self._advanced or self._original.copy()", "self._advanced or self._original"),
    ),
    _bug(
        "the index of n-grams does not follow cuts",
        LOG,
        ("            self.index.truncate(to)\n", "            pass\n"),
    ),
    _bug(
        "a cut loses the older places of an n-gram",
        NGRAMS,
        ("                self._newest[ngram] = older", "                del self._newest[ngram]"),
    ),
    _bug(
        "the shortest match is taken",
        NGRAMS,
        ("if length > found_length:", "if not found_length:"),
    ),
    _bug(
        "the oldest continuation in the tree is taken",
        RADIX,
        ("islice(reversed(self.children.values())", "islice(iter(self.children.values())"),
    ),
    _bug(
        "a continuation begins with the last ids of the log",
        RADIX,
        ("found.frombytes(node.key[len(rest) :])", "found.frombytes(node.key)"),
    ),
    _bug(
        "a session drafts without a gain",
        GAIN,
        ("            self._wait_ids = self._pause_ids\n", ""),
    ),
    _bug(
        "a session without a gain never tries again",
        GAIN,
        ("self._wait_ids = max(self._wait_ids - 1, 0)", "self._wait_ids = max(self._wait_ids, 0)"),
    ),
    # ---- turns that change while a step is planned
    _bug(
        "a retracted turn stays among the admitted ones",
        ADMISSION,
        (
            "        self._leave(sequence)\n        self.retracted[sequence] = None\n",
            "        self.retracted[sequence] = None\n",
        ),
    ),
    _bug(
        "a claim retracts turns without which its prompt has no room either",
        ADMISSION,
        (
            "                return later[:count]\n        return None\n",
            "                return later[:count]\n        return later\n",
        ),
    ),
    _bug(
        "the oldest turn loses its pages to a claim",
        ADMISSION,
        ("            and other is not oldest\n", ""),
    ),
    _bug(
        "a claim retracts one turn too few",
        ADMISSION,
        ("return later[:count]\n", "return later[: count - 1]\n"),
    ),
    _bug(
        "a turn that is queued again keeps its old place too",
        QUEUE,
        ("        self.remove(sequence)\n        self.places[", "        self.places["),
    ),
    _bug(
        "a turn that was retracted for another row has a row",
        PACKING,
        (
            "        if not sequence.turn.is_admitted:\n            return True\n        count",
            "        count",
        ),
    ),
    _bug(
        "a decode that was retracted for another row has a row",
        PACKING,
        ("if owed == 1 and turn.is_admitted and not", "if owed == 1 and not"),
    ),
    _bug(
        "a row with drafts begins where its drafts begin",
        PACKING,
        (
            "        start = sequence.lease.launched - tokens\n",
            "        start = sequence.lease.launched - count\n",
        ),
    ),
    _bug(
        "a second row in flight is reserved in place of the first",
        CACHE,
        (
            "        reach, size = lease.committed + lease.reserved, self.page_size\n",
            "        reach, size = lease.committed, self.page_size\n",
        ),
    ),
    _bug(
        "an idle session counts as busy",
        CACHE,
        (
            "        assert lease.reserved == 0\n        self._busy.discard(lease)\n"
            "        self._remove_idle",
            "        assert lease.reserved == 0\n        self._remove_idle",
        ),
    ),
    _bug(
        "a busy session loses its marks like an idle one",
        CACHE,
        ("        self._idle_inside.pop(lease, None)\n", ""),
    ),
    _bug(
        "the pages that a turn spills first are forgotten when it spills more",
        HOST,
        (
            "        if not lease.host_pages:\n            lease.host_end = lease.committed\n",
            "        lease.host_end = lease.committed\n",
        ),
    ),
    _bug(
        "the rows of a refused step that were built stay in flight",
        LOOP,
        ("        planned = plan.rows[:built] + unbuilt\n", "        planned = unbuilt\n"),
    ),
    _bug(
        "a refused step takes back draws that it has not promised",
        LOOP,
        (
            "x.tokens, None) for x in plan.rows[built:]]",
            "x.tokens, x.turn) for x in plan.rows[built:]]",
        ),
    ),
    _bug(
        "the steps behind a failed one stay in flight",
        LOOP,
        (
            "        rows = [row for step in steps for row in step.rows]\n",
            "        rows = steps[0].rows\n",
        ),
    ),
    _bug(
        "a paused turn stays in its queue",
        BACKEND,
        (
            '        sequence.worst_residency = "none"\n        self._scheduler.remove(sequence)\n',
            '        sequence.worst_residency = "none"\n        if not is_paused:\n'
            "            self._scheduler.remove(sequence)\n",
        ),
    ),
    _bug(
        "a short turn is listed each time that the step has room",
        SCHEDULER,
        (
            "for sequence in filter(search.takes, chain(first, admitted)):",
            "for sequence in chain(first, admitted):",
        ),
    ),
    _bug(
        "turns of which others claim the pages are retracted in flight",
        SCHEDULER,
        (
            "if victims and any(victim.in_flight for victim in victims):",
            "if victims and any(victim.in_flight for victim in victims[1:]):",
        ),
    ),
    _bug(
        "a decode is listed behind the short turn that it has become",
        SCHEDULER,
        (
            "                    self._queue(sequence)\n            elif (\n                owed\n",
            "                    self._queue(sequence)\n            if (\n                owed\n",
        ),
    ),
    _bug(
        "the turn for which the last step had no room is listed twice",
        SCHEDULER,
        (
            "if search.takes(overdue) and self._admit(overdue) and overdue.owed:",
            "if self._admit(overdue) and overdue.owed:",
        ),
    ),
]
