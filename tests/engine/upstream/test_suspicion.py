"""Tests of the losses that count against a session."""

from continuo.engine.upstream.suspicion import EVIDENCE_WINDOW_S, Suspicion


def test_second_loss_makes_a_suspect_and_the_third_is_refused() -> None:
    suspicion, seen = Suspicion(), list[tuple[bool, bool]]()
    for now in range(3):
        suspicion.add_loss(10, float(now))
        seen.append((suspicion.is_suspect(now), suspicion.is_refused(now)))
    assert seen == [(False, False), (True, False), (True, True)]


def test_rewind_into_the_sent_ids_clears() -> None:
    suspicion = Suspicion()
    suspicion.add_loss(10, 0.0)
    suspicion.keep(10)
    assert suspicion.count(0.0) == 1
    suspicion.keep(9)
    assert suspicion.count(0.0) == 0


def test_old_losses_do_not_count() -> None:
    suspicion = Suspicion()
    suspicion.add_loss(10, 0.0)
    assert suspicion.count(EVIDENCE_WINDOW_S) == 0
    suspicion.add_loss(10, EVIDENCE_WINDOW_S)
    assert suspicion.count(EVIDENCE_WINDOW_S) == 1
