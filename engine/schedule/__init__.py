"""Who runs next, and how much of it. Plain Python: knows no torch, no wire, no time."""

from engine.schedule.scheduler import Scheduler, Work

__all__ = ["Scheduler", "Work"]
